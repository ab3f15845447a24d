"""Text of a flattened file: its constants and definitions, and the formatting of statements in the style of ruff and
black."""

import ast
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from archlab.config.components import position
from archlab.config.core.base import Base
from archlab.flatten.steps import Step, rewritten
from archlab.flatten.values import named

WIDTH = 88
"""Maximum line length. It is the default of ruff and black."""

CROSS = "cross"
"""Kind under which the parts of cross-attention are added to the page."""


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass
class Page:
    """Constants, functions and classes of a flattened file, without duplicates.

    `constant` and `define` add one of them and return the name to use. If several kinds of layers add the same text
    under the same name, they share it. If the texts differ, the kind of the layer becomes a part of the name. Only
    cross-attention, which is a part of a layer, leaves the plain name to the rest of the layer.
    """

    layers_differ: bool
    """Whether the model has more than one kind of layer, so that two kinds may need different texts under one name."""
    clashes: set[str] = field(default_factory=set)
    """Names that were added with more than one text. `flatten` collects them on a first page, which it then
    discards."""
    constants: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Mapping from the name of a constant to its value (as text) and its comment."""
    definitions: dict[str, str] = field(default_factory=dict)
    """Mapping from the name of a function or class to its text. Each definition precedes its uses."""
    _taken: dict[tuple[str, str], str] = field(default_factory=dict)

    def constant(self, kind: str, name: str, value: int | float | str, comment: str = "") -> str:
        """Add a constant and return its name. If `value` is a string, it is written as it is."""
        text = value if isinstance(value, str) else number(value)
        used = self._name(kind, name, text, f"{name}_{kind}".upper())
        self.constants.setdefault(used, (text, comment))
        return used

    def define(self, kind: str, name: str, text: Callable[[str], str]) -> str:
        """Add a function or class and return its name. `text` returns the text for this name."""
        prefixed = camel(kind) + name if name[0].isupper() else f"{kind}_{name}"
        used = self._name(kind, name, text(""), prefixed)
        self.definitions.setdefault(used, text(used))
        return used

    def _name(self, kind: str, name: str, text: str, prefixed: str) -> str:
        if (name, text) in self._taken:
            return self._taken[name, text]
        taken = {used for (base, _), used in self._taken.items() if base == name}
        if taken and kind != CROSS:
            self.clashes.add(name)
        used = prefixed if taken or (self.layers_differ and name in self.clashes) else name
        while used in taken:
            used += "2" if used[-1].islower() else "_2"
        self._taken[name, text] = used
        return used


def camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def number(value: int | float) -> str:
    grouped = "_" if value >= 10_000 else ""
    text = f"{value:{grouped}}" if isinstance(value, int) else repr(value)
    if isinstance(value, float) and value.is_integer() and value < 1e16:
        text = f"{value:{grouped}.1f}"
    return re.sub(r"e([+-]?)0*(\d)", r"e\1\2", text).replace("e+", "e")


def lines(*parts: str | Sequence[str] | None) -> str:
    flat: list[str] = []
    for part in parts:
        flat += [] if part is None else [part] if isinstance(part, str) else part
    return "\n".join(flat)


# --- names of constants -----------------------------------------------------------------------------------------------

NAMES = {
    "vocab_size": "VOCAB_SIZE", "Embedding.width": "EMBEDDING_WIDTH", "Embedding.scale": "EMBEDDING_SCALE",
    "Head.scale": "LOGIT_SCALE", "Head.softcap": "LOGIT_SOFTCAP", "Dropout.embedding": "EMBEDDING_DROPOUT",
    "Dropout.attention": "ATTENTION_DROPOUT", "Dropout.branch": "BRANCH_DROPOUT",
    "eps": "NORM_EPS", "norm_eps": "NORM_EPS",
    "DynamicTanh.alpha": "NORM_ALPHA", "Rope.theta": "ROPE_THETA", "Sinusoidal.theta": "WAVE_THETA",
    "Sinusoidal.offset": "FIRST_POSITION", "Learned.offset": "FIRST_POSITION", "original_max_seq_len": "ORIGINAL_LEN",
    "MoE.experts": "N_EXPERTS", "MoE.active": "ACTIVE_EXPERTS", "MoE.d_ff": "D_EXPERT",
    "LatentSpace.width": "D_LATENT",
    "Router.factor": "EXPERT_FACTOR", "Groups.n": "N_GROUPS", "Groups.kept": "KEPT_GROUPS",
    "BlockSparse.size": "BLOCK_SIZE", "Temperature.beta": "TEMPERATURE_BETA",
    "Temperature.length": "TEMPERATURE_LENGTH",
    "Temperature.offset": "TEMPERATURE_OFFSET", "d_ff": "D_FF",
    **{f"{cls.__name__}.factor": "ROPE_FACTOR" for cls in vars(position).values()
       if isinstance(cls, type) and "factor" in getattr(cls, "model_fields", {})},
}  # fmt: skip
"""Mapping from config fields to names of constants. A key is the name of a field, or `Section.field` if several
sections have such a field. If a field is not listed, its constant has the name of the field."""

COMMENTS = {
    "LAST_KEPT": "frequencies are unchanged up to this pair",
    "FIRST_SLOWED": "frequencies are divided by ROPE_FACTOR from here on",
    "ROTARY_DIM": "rotated dimensions of each head", "SLOPES": "one per head",
    "WINDOW": "keys that a query attends to, including its own", "SOFTCAP": "for attention scores",
    "ACTIVE_EXPERTS": "experts per token", "D_EXPERT": "hidden width of an expert",
    "D_LATENT": "width of the experts' inputs and outputs",
    "EXPERT_FACTOR": "multiplies the weights of experts", "KEPT_GROUPS": "groups whose experts a token may choose",
    "SUMMARY": "last keys of a block, which later blocks see", "MAX_DISTANCE": "larger distances count as this one",
    "STRIDE": "beyond the window, every STRIDE-th key is visible", "GLOBAL_TOKENS": "first tokens, visible to all",
    "CLIP_QKV": "limit of the absolute value of queries, keys and values", "MAX_SEQ_LEN": "learned positions end here",
}  # fmt: skip
"""Mapping from the name of a constant in the flattened file to the comment beside it."""

SAME = {"v_dim": "head_dim", "n_kv_heads": "n_heads"}
"""Pairs of fields. If both fields have the same value, the first field uses the constant of the second."""


def constant_name(owner: Base, field: str) -> str:
    same = SAME.get(field, "")
    field = same if getattr(owner, same, None) == getattr(owner, field) else field
    return NAMES.get(f"{type(owner).__name__}.{field}") or NAMES.get(field) or field.upper()


def constant(name: str, value: object) -> ast.Name:
    """Return an expression that reads a constant. When the expression is written, the constant is added to the Page."""
    node = ast.Name(name, ast.Load())
    node.constant = value  # pyright: ignore[reportAttributeAccessIssue]
    return node


def root(value: float, width: int) -> str:
    """Return "math.sqrt(width)" or "1 / math.sqrt(width)" if `value` equals one of them, otherwise an empty string."""
    return {math.sqrt(width): "math.sqrt(width)", 1 / math.sqrt(width): "1 / math.sqrt(width)"}.get(value, "")


# --- statements -------------------------------------------------------------------------------------------------------

Names = Callable[[ast.Name], str]
"""Function that returns the text to write for a name. If it is a constant, the function also adds the constant to the
Page."""


def code(expr: ast.expr, names: Names) -> str:
    text = ast.unparse(rewritten(expr, lambda name: ast.Name(names(name), name.ctx)))
    text = re.sub(r"'([^'\"\\]*)'", r'"\1"', text)
    return re.sub(r"(?<![\w.)\]])((?:\w|\.)+) \*\* (-?(?:\w|\.)+)(?![\w.(\[])", r"\1**\2", text)


def written(steps: list[Step], names: Names, indent: str = "    ") -> Iterator[str]:
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
    if isinstance(expr, ast.Tuple) and len(expr.elts) > 1:
        return ", ".join(code(elt, names) for elt in expr.elts)
    return code(expr, names)


def fitted(start: str, expr: ast.expr, end: str, names: Names) -> list[str]:
    """Return the lines of an expression, with the text `start` before it and `end` after it.

    Use as few lines as the maximum line length allows.
    """
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
    if isinstance(expr, ast.Call | ast.Name | ast.Constant | ast.Attribute | ast.Subscript):
        return fitted(start, expr, "", names)
    whole = start + code(ast.BinOp(named("x"), op(), expr), names).removeprefix(f"x {SIGNS[op]} ")
    if len(whole) <= WIDTH or not isinstance(expr, ast.BinOp) or isinstance(expr.op, ast.Pow):
        return [whole]
    indent = " " * (len(start) - len(start.lstrip()))
    parts = _operands(expr, type(expr.op))
    lines = [line for sign, part in parts for line in _operand(f"{indent}    {sign}", part, type(expr.op), names)]
    return [f"{start}(", *lines, f"{indent})"]


def _items(items: list[tuple[str, ast.expr]], indent: str, names: Names) -> list[str]:
    return [line for start, item in items for line in fitted(f"{indent}    {start}", item, ",", names)]


def _calls(expr: ast.expr) -> int:
    return sum(isinstance(link, ast.Call | ast.Subscript) for link in _links(expr)[1:])


def _links(expr: ast.expr) -> list[ast.expr]:
    """Split a chain such as a[b].c(d)[e].f().g into the links a[b], .c(d)[e], .f() and .g.

    Each link is returned as the expression that ends with it, including all earlier links. The first link is a name
    with its first call or index.
    """
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
    """Return the text of the last link of a chain, for example .c(d)[e] for a.b().c(d)[e]."""

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


SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.MatMult: "@",
    ast.BitAnd: "&", ast.BitOr: "|",
}  # fmt: skip


def _operands(expr: ast.expr, like: type[ast.operator]) -> list[tuple[str, ast.expr]]:
    ranks = [(ast.Add, ast.Sub), (ast.Mult, ast.Div, ast.FloorDiv, ast.MatMult), (ast.BitAnd,), (ast.BitOr,)]
    rank = next((rank for rank in ranks if like in rank), ())  # a power is one operand
    if isinstance(expr, ast.BinOp) and isinstance(expr.op, rank):
        return [*_operands(expr.left, like), (f"{SIGNS[type(expr.op)]} ", expr.right)]
    return [("", expr)]
