"""Statements as the text of a file: 88 columns wide, as ruff and black format them."""

import ast
import re
import textwrap
from collections.abc import Callable, Iterator

from archlab.flatten.page import WIDTH
from archlab.flatten.steps import Step, rewritten
from archlab.flatten.values import named

Names = Callable[[ast.Name], str]
"""The name of a constant in the file."""


def code(expr: ast.expr, names: Names) -> str:
    """An expression on one line."""
    text = ast.unparse(rewritten(expr, lambda name: ast.Name(names(name), name.ctx)))
    text = re.sub(r"'([^'\"\\]*)'", r'"\1"', text)
    return re.sub(r"(?<![\w.)\]])((?:\w|\.)+) \*\* (-?(?:\w|\.)+)(?![\w.(\[])", r"\1**\2", text)


def written(steps: list[Step], names: Names, indent: str = "    ") -> Iterator[str]:
    """The lines of statements."""
    for step in steps:
        lines = _statement(step.node, names, indent, f"  {step.behind}" if step.behind else "")
        above = step.above
        if step.behind and (len(lines) > 1 or len(lines[0]) > WIDTH):
            lines, above = _statement(step.node, names, indent, ""), [*above, step.behind]
        for comment in above:
            yield from textwrap.wrap(comment, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}# ")
        yield from lines
        yield from written(step.body, names, indent + "    ")


def _statement(node: ast.stmt, names: Names, indent: str, behind: str) -> list[str]:
    match node:
        case ast.Assign(targets=[target], value=value):
            return fitted(f"{indent}{_bare(target, names)} = ", value, behind, names)
        case ast.Return(value=ast.expr() as value):
            return fitted(f"{indent}return ", value, behind, names)
        case ast.Expr(value=value):
            return fitted(indent, value, behind, names)
        case ast.For(target=target, iter=iterable):
            return [f"{indent}for {_bare(target, names)} in {code(iterable, names)}:{behind}"]
        case ast.While(test=test):
            return [f"{indent}while {code(test, names)}:{behind}"]
        case _:
            raise TypeError(ast.dump(node))


def _bare(expr: ast.expr, names: Names) -> str:
    """A tuple without brackets around it."""
    if isinstance(expr, ast.Tuple) and len(expr.elts) > 1:
        return ", ".join(code(elt, names) for elt in expr.elts)
    return code(expr, names)


def fitted(start: str, expr: ast.expr, end: str, names: Names) -> list[str]:
    """An expression between what stands before and behind it, on as many lines as it needs."""
    whole = start + (_bare(expr, names) if start.strip() and not end.startswith(",") else code(expr, names)) + end
    if len(whole) <= WIDTH:
        return [whole]
    indent = " " * (len(start) - len(start.lstrip()))
    match expr:
        case ast.Call(func=ast.Attribute(value=ast.Call(args=[_, *_]) as called, attr=attr), args=[], keywords=[]) if (
            _calls(expr) < 2
        ):
            return fitted(start, called, f".{attr}(){end}", names)
        case ast.Subscript(value=ast.Call() as called, slice=index) if _calls(expr) < 2:
            return fitted(start, called, f"[{_bare(index, names)}]{end}", names)
        case ast.Call(func=func, args=args, keywords=keywords) if _calls(expr) < 2 and args + keywords:
            head = f"{start}{code(func, names)}("
            if len(head) > WIDTH and isinstance(func, ast.Attribute) and isinstance(func.value, ast.BinOp):
                whole = code(ast.Call(ast.Attribute(named("x"), func.attr, ast.Load()), args, keywords), names)
                inside = fitted(f"{indent}    ", func.value, "", names)
                return [f"{start}(", *inside, f"{indent}){whole.removeprefix('x')}{end}"]
            items: list[tuple[str, ast.expr]] = [("", arg) for arg in args]
            items += [(f"{keyword.arg}=", keyword.value) for keyword in keywords]
            return [head, *_items(items, indent, names), f"{indent}){end}"]
        case ast.Tuple(elts=elts):
            return [f"{start}(", *_items([("", elt) for elt in elts], indent, names), f"{indent}){end}"]
        case _:
            pass
    if isinstance(expr, ast.BinOp) and len(_operands(expr, type(expr.op))) == 2:
        sign = f" {SIGNS[type(expr.op)]} "
        left = code(ast.BinOp(expr.left, expr.op, named("x")), names).removesuffix(f"{sign}x") + sign
        if isinstance(expr.right, ast.BinOp):
            first, *rest = _operand(start + left, expr.right, type(expr.op), names)
        else:
            first, *rest = fitted(start + left, expr.right, "", names)
        if rest and len(first) <= WIDTH and (isinstance(expr.right, ast.BinOp) or not first.endswith(" (")):
            return [first, *rest[:-1], rest[-1] + end]
    inner = indent + "    "
    alone = inner + code(expr, names)
    if len(alone) <= WIDTH:
        return [f"{start}(", alone, f"{indent}){end}"]
    if isinstance(expr, ast.BinOp):
        parts = _operands(expr, type(expr.op))
        lines = [line for sign, operand in parts for line in _operand(inner + sign, operand, type(expr.op), names)]
        return [f"{start}(", *lines, f"{indent}){end}"]
    if _calls(expr) >= 2:
        root, *links = _links(expr)
        return [
            f"{start}(",
            inner + code(ast.Attribute(root, "x", ast.Load()), names).removesuffix(".x"),
            *(inner + _link(link, names) for link in links),
            f"{indent}){end}",
        ]
    return [whole]


def _operand(start: str, expr: ast.expr, op: type[ast.operator], names: Names) -> list[str]:
    """In brackets, where it binds no closer than the operator."""
    if isinstance(expr, ast.Call | ast.Name | ast.Constant | ast.Attribute | ast.Subscript):
        return fitted(start, expr, "", names)
    whole = start + code(ast.BinOp(named("x"), op(), expr), names).removeprefix(f"x {SIGNS[op]} ")
    if len(whole) <= WIDTH or not isinstance(expr, ast.BinOp):
        return [whole]
    indent = " " * (len(start) - len(start.lstrip()))
    parts = _operands(expr, type(expr.op))
    lines = [line for sign, part in parts for line in _operand(f"{indent}    {sign}", part, type(expr.op), names)]
    return [f"{start}(", *lines, f"{indent})"]


def _items(items: list[tuple[str, ast.expr]], indent: str, names: Names) -> list[str]:
    return [line for start, item in items for line in fitted(f"{indent}    {start}", item, ",", names)]


def _calls(expr: ast.expr) -> int:
    """Calls of methods one behind the other."""
    return sum(isinstance(link, ast.Call | ast.Subscript) for link in _links(expr)[1:])


def _links(expr: ast.expr) -> list[ast.expr]:
    """a[b].c(d)[e].f().g -> a[b], .c(d)[e], .f(), .g: each with what stands before it. A name keeps its first call."""
    match expr:
        case ast.Call(func=ast.Attribute(value=inner)) if not _is_dotted(inner):
            return [*_links(inner), expr]
        case ast.Subscript(value=ast.Call(func=ast.Attribute(value=inner))) if not _is_dotted(inner):
            return [*_links(inner), expr]
        case ast.Attribute(value=inner) if not _is_dotted(inner):
            return [*_links(inner), expr]
        case _:
            return [expr]


def _is_dotted(expr: ast.expr) -> bool:
    return isinstance(expr, ast.Name) or (isinstance(expr, ast.Attribute) and _is_dotted(expr.value))


def _link(expr: ast.expr, names: Names) -> str:
    """.c(d)[e] of a.b().c(d)[e]."""

    def of_x(inner: ast.expr) -> ast.expr:
        match inner:
            case ast.Attribute(attr=attr, ctx=ctx):
                return ast.Attribute(named("x"), attr, ctx)
            case ast.Call(func=func, args=args, keywords=keywords):
                return ast.Call(of_x(func), args, keywords)
            case ast.Subscript(value=value, slice=index, ctx=ctx):
                return ast.Subscript(of_x(value), index, ctx)
            case _:
                raise TypeError(ast.dump(inner))

    return code(of_x(expr), names).removeprefix("x")


SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|"}


def _operands(expr: ast.expr, like: type[ast.operator]) -> list[tuple[str, ast.expr]]:
    """Of operators of one rank, from the left."""
    ranks = [(ast.Add, ast.Sub), (ast.Mult, ast.Div, ast.MatMult), (ast.BitAnd,), (ast.BitOr,)]
    rank = next(rank for rank in ranks if like in rank)
    if isinstance(expr, ast.BinOp) and isinstance(expr.op, rank):
        return [*_operands(expr.left, like), (f"{SIGNS[type(expr.op)]} ", expr.right)]
    return [("", expr)]
