"""Python operations on the values of a partial evaluation. The result is known if all operands are known; otherwise it
is code."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.flatten.values import Class, Code, Known, Record, Sequence, Table, Value

OPERATORS: dict[type[ast.operator | ast.cmpop | ast.unaryop], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: operator.invert, ast.UAdd: operator.pos,
}  # fmt: skip


class NotWritableError(Exception):
    """Raised if archlab.model contains a construct that cannot be written to a flattened file."""


def cannot_be_written(layer: LayerConfig, name: str, why: str) -> UserError:
    kind = getattr(getattr(layer, name), "kind", name)
    return UserError(f"model.{name}.kind  {kind} cannot be in a flattened file, because its source contains `{why}`")


DEFAULTS: dict[str, Any] = {
    "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False, "unitriangular": False, "padding": 0,
}  # fmt: skip
"""Defaults of keyword arguments of torch's functions. The flattened file omits an argument whose value is the
default."""


def is_default(name: str, value: Value) -> bool:
    return name in DEFAULTS and isinstance(value, Known) and value.value == DEFAULTS[name]


def fold(function: Callable[..., Any], write: Callable[..., ast.expr], *values: Value) -> Value:
    """Return the result of the operation `function`, or its code if an operand is not known.

    `write` returns the code of the operation. If an operand is a named constant, a known number keeps its code, so that
    the file contains `D_MODEL // 2` instead of a number.
    """
    try:
        result = function(*(plain(value) for value in values))
    except NotWritableError:
        return Code(write(*(lift(value) for value in values)))
    is_named = any(isinstance(value, Known) and value.code is not None for value in values)
    is_number = isinstance(result, int | float) and not isinstance(result, bool)
    if is_number and all(isinstance(value, Known) and isinstance(value.code, ast.Constant) for value in values):
        return Known(result, ast.Constant(result) if result >= 0 else write(*map(lift, values)))
    return Known(result, write(*(lift(value) for value in values)) if is_named and is_number else None)


def plain(value: Value) -> Any:
    """Return a known value as a Python object. Raise NotWritableError if the value is not known."""
    match value:
        case Known(value=known):
            return known
        case Sequence(items=items):
            return tuple(plain(item) for item in items)
        case Table(items=table):
            return {key: plain(item) for key, item in table.items()}
        case _:
            raise NotWritableError("an unknown value")


def lift(value: Value) -> ast.expr:
    """Return the expression to write for a value in the flattened file."""
    match value:
        case Known(code=ast.expr() as code):
            return code
        case Known(value=float() as known) if math.isinf(known):
            return ast.parse(f"{'-' if known < 0 else ''}torch.inf", mode="eval").body
        case Known(value=known) if known is None or isinstance(known, str | int | float | bool):
            return ast.parse(repr(known), mode="eval").body
        case Known(value=tuple() as known):
            return ast.Tuple([lift(Known(item)) for item in known], ast.Load())
        case Code(expr=expr):
            return expr
        case Sequence(items=items):
            return ast.Tuple([lift(item) for item in items], ast.Load())
        case Record(path=ast.expr() as path):
            return path
        case _:
            raise NotWritableError(f"a {type(value).__name__} in an expression")


def unrolled(value: Value) -> list[Value]:
    match value:
        case Sequence(items=items):
            return list(items)
        case Record(made_by=Class(), attributes=attributes, path=None):
            return list(attributes.values())
        case Known(value=known, code=code) if isinstance(known, tuple | list | range):
            at = (ast.Subscript(code, ast.Constant(i), ast.Load()) if code else None for i in range(len(known)))
            return [Known(item, expr) for item, expr in zip(known, at, strict=True)]
        case _:
            raise NotWritableError("a loop over an unknown value")


def bound(target: ast.expr, value: Value) -> dict[str, Value]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple | ast.List):
        items = unrolled(value)
        return {k: v for t, item in zip(target.elts, items, strict=True) for k, v in bound(t, item).items()}
    raise NotWritableError(ast.unparse(target))


def as_table(keys: list[Value | None], values: list[Value]) -> Table:
    """Return the Table for a dict literal. A key that is None belongs to a value that the literal unpacks with `**`."""
    items: dict[Any, Value] = {}
    for key, value in zip(keys, values, strict=True):
        if key is None:
            items |= value.items if isinstance(value, Table) else {}
        else:
            items[plain(key)] = value
    return Table(items)


def compare(op: ast.cmpop, left: Value, right: Value) -> Value:
    """Evaluate `left op right`. Even if an operand is not known, the result may be known: a tensor is never None."""
    if isinstance(op, ast.Is | ast.IsNot):
        is_none = [isinstance(v, Known) and v.value is None for v in (left, right)]
        if any(is_none) and not (isinstance(left, Known) and isinstance(right, Known)):
            return Known(isinstance(op, ast.IsNot))
    if left is right and not isinstance(left, Code):
        return Known(isinstance(op, ast.Is | ast.Eq))
    return fold(OPERATORS[type(op)], lambda a, b: ast.Compare(a, [op], [b]), left, right)


def is_true(value: Value) -> bool | None:
    """Return whether a value is true, or None if this is not known."""
    match value:
        case Known(value=known):
            return bool(known)
        case Sequence(items=items) | Table(items=items):
            return bool(items)
        case Code():
            return None
        case _:
            return True


def boolean(op: ast.boolop, nodes: list[ast.expr], evaluate: Callable[[ast.expr], Value]) -> Value:
    left: list[ast.expr] = []
    for i, node in enumerate(nodes):
        value = evaluate(node)
        truth = is_true(value)
        if truth is None:
            left.append(lift(value))
        elif truth == isinstance(op, ast.Or):  # this operand decides the result
            if not left:
                return value
            left.append(lift(value))
            break
        elif i == len(nodes) - 1 and not left:
            return value
    return Code(left[0] if len(left) == 1 else ast.BoolOp(op, left))


def conditional(test: Value, body: ast.expr, orelse: ast.expr, evaluate: Callable[[ast.expr], Value]) -> Value:
    truth = is_true(test)
    if truth is not None:
        return evaluate(body if truth else orelse)
    a, b = evaluate(body), evaluate(orelse)
    if isinstance(a, Known) and isinstance(b, Known) and a.value == b.value:
        return a
    return Code(ast.IfExp(lift(test), lift(a), lift(b)))


def subscript(value: Value, index: Value) -> Value:
    if isinstance(value, Table):
        return value.items[plain(index)]
    if isinstance(index, Known) and isinstance(value, Sequence):
        picked = value.items[index.value]
        return Sequence(picked) if isinstance(picked, tuple) else picked
    if isinstance(value, Known):
        return fold(operator.getitem, lambda a, b: ast.Subscript(a, b, ast.Load()), value, index)
    return Code(ast.Subscript(lift(value), lift(index), ast.Load()))


def slicing(parts: list[Value | None]) -> Value:
    code: Any = ast.Slice(*(None if part is None else lift(part) for part in parts))
    try:
        return Known(slice(*(None if part is None else plain(part) for part in parts)), code)
    except NotWritableError:
        return Code(code)


def is_instance(value: Value, kind: Value) -> bool:
    match value, kind:
        case Known(value=known), Known(value=wanted):
            return isinstance(known, wanted)
        case Record(made_by=str(name)), Code(expr=expr):
            return ast.unparse(expr) == name
        case Class(), Known(value=wanted):
            return wanted is type
        case (Record(made_by=Class() as made_by), Class() as wanted):
            return made_by.node is wanted.node
        case _:
            return False


def names_in(expr: ast.expr) -> list[ast.Name]:
    return [n for n in ast.walk(expr) if isinstance(n, ast.Name) and n.id != "math"]
