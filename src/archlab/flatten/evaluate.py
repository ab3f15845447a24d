"""Partial evaluation of the code of archlab.model for one config.

An expression that depends only on the config has a known value. Any other expression remains code and is written to the
flattened file. If this code uses a known value, the file contains the value as a named constant. Therefore the file has
no options, and no branches that are never taken.
"""

import ast
import builtins
import importlib
from collections.abc import Callable, Iterable
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any

from archlab.config.core.base import Base
from archlab.config.core.registry import implementation_of, make
from archlab.flatten.operations import (
    OPERATORS,
    NotWritableError,
    as_table,
    boolean,
    bound,
    compare,
    conditional,
    fold,
    is_default,
    is_instance,
    lift,
    names_in,
    plain,
    slicing,
    subscript,
    unrolled,
)
from archlab.flatten.text import constant
from archlab.flatten.values import (
    Class,
    Code,
    Function,
    Known,
    Module,
    Native,
    Record,
    Sequence,
    Value,
    definition,
    module,
    modules,
    named,
)

TORCH = ("torch", "archlab.model")
"""Packages that `flatten` does not import.

An expression with a name from torch remains code. The code of archlab.model is read from its files and evaluated.
"""


class Evaluator:
    """Evaluator of expressions. Its subclasses add statements and calls."""

    def constant(self, owner: Base, name: str, value: Any) -> ast.expr | None:
        raise NotImplementedError

    def call(self, function: Value, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        raise NotImplementedError

    def run_unwritten(self, function: Function, bound: dict[str, Value]) -> Value:
        raise NotImplementedError

    def read(self, name: str, names: dict[str, Value], home: Module) -> Value:
        return names[name] if name in names else self.top(name, home)

    def top(self, name: str, home: Module) -> Value:
        match home.names.get(name):
            case ast.FunctionDef() as node:
                return Function(node, home)
            case ast.ClassDef() as node:
                return Class(node, home)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self.evaluate(value, {}, home)
            case ast.Import(names=aliases):
                full = next(alias.name for alias in aliases if name == (alias.asname or alias.name))
                return (
                    Code(named(name)) if full.startswith(TORCH) else Known(importlib.import_module(full), named(name))
                )
            case ast.ImportFrom(module=str(source), names=aliases):
                original = next(alias.name for alias in aliases if name == (alias.asname or alias.name))
                if source.startswith("archlab.model"):
                    return self.top(original, module(source))
                return Code(named(name)) if source.startswith(TORCH) else Known(_import(source, original))
            case None if hasattr(builtins, name):
                return Known(getattr(builtins, name), named(name))
            case _:
                raise NotWritableError(f"{name} in {home.name}")

    def evaluate(self, node: ast.expr, names: dict[str, Value], home: Module) -> Value:

        def evaluate(inner: ast.expr) -> Value:
            return self.evaluate(inner, names, home)

        match node:
            case ast.Constant(value=value):
                return Known(value, node)
            case ast.Name(id=name):
                return self.read(name, names, home)
            case ast.Attribute(value=inner, attr=attr):
                return self.attribute(evaluate(inner), attr)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return Sequence(tuple(self._spread(elts, evaluate)))
            case ast.Dict(keys=keys, values=values):
                return as_table(
                    [None if key is None else evaluate(key) for key in keys], [evaluate(value) for value in values]
                )
            case ast.Lambda():
                return Function(node, home, dict(names))
            case ast.JoinedStr(values=parts):
                return Known(
                    "".join(
                        str(
                            plain(
                                evaluate(getattr(part, "value", part) if isinstance(part, ast.FormattedValue) else part)
                            )
                        )
                        for part in parts
                    )
                )
            case ast.UnaryOp(op=op, operand=operand):
                return fold(OPERATORS[type(op)], lambda x: ast.UnaryOp(op, x), evaluate(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, evaluate(left), evaluate(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compare(op, evaluate(left), evaluate(right))
            case ast.BoolOp(op=op, values=values):
                return boolean(op, values, evaluate)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return conditional(evaluate(test), body, orelse, evaluate)
            case ast.Subscript(value=inner, slice=index):
                return subscript(evaluate(inner), evaluate(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [None if part is None else evaluate(part) for part in (lower, upper, step)]
                return slicing(parts)
            case ast.GeneratorExp(elt=elt, generators=[loop]) | ast.ListComp(elt=elt, generators=[loop]) if (
                not loop.ifs
            ):
                items = evaluate(loop.iter)
                if isinstance(items, Code):
                    inner = {n.id: Code(named(n.id)) for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
                    generator = ast.comprehension(loop.target, items.expr, [], 0)
                    return Code(ast.ListComp(lift(self.evaluate(elt, {**names, **inner}, home)), [generator]))
                names_per_item = ({**names, **bound(loop.target, item)} for item in unrolled(items))
                return Sequence(tuple(self.evaluate(elt, inner, home) for inner in names_per_item))
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._call(node, evaluate(function), self._spread(arguments, evaluate), keywords, evaluate)
            case _:
                raise NotWritableError(ast.unparse(node))

    def attribute(self, value: Value, name: str) -> Value:
        match value:
            case Known(value=Base() as config):
                return self._config_attribute(config, name)
            case Known(value=known, code=code):
                inner = getattr(known, name)
                is_named = isinstance(known, ModuleType) and code is not None
                return Known(inner, ast.Attribute(code, name, ast.Load()) if is_named and code else None)
            case Record(attributes=attributes, made_by=made_by):
                return _part(value, name) if name in attributes else self._class_attribute(value, made_by, name)
            case _:
                return Code(ast.Attribute(lift(value), name, ast.Load()))

    def _config_attribute(self, config: Base, name: str) -> Value:
        value = getattr(config, name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | tuple)
            or name not in type(config).model_fields
        ):
            getter = getattr(getattr(type(config), name, None), "fget", None)
            if isinstance(value, int | float) and isinstance(getter, FunctionType):
                home, node = definition(getter)
                computed = self.run_unwritten(Function(node, home), {"self": Known(config)})
                return computed if isinstance(computed, Known) and computed.value == value else Known(value)
            return Known(value)
        return Known(value, self.constant(config, name, value))

    def _class_attribute(self, record: Record, made_by: Class | str, name: str) -> Value:
        if isinstance(made_by, str):
            return Code(ast.Attribute(lift(record), name, ast.Load()))
        if method := made_by.method(name):
            function = Function(method, made_by.home, owner=record)
            is_property = any(ast.unparse(decorator) == "property" for decorator in method.decorator_list)
            return self.call(function, [], {}) if is_property else function
        for node in made_by.node.body:
            if isinstance(node, ast.Assign):
                assigned = bound(node.targets[0], self.evaluate(node.value, {}, made_by.home))
                if name in assigned:
                    return assigned[name]
        if record.is_module and name in MODULE_METHODS:
            return Native(lambda *arguments: MODULE_METHODS[name](record, *arguments))
        if record.is_module:  # an attribute of nn.Module, such as `training`
            return Code(ast.Attribute(lift(record), name, ast.Load()))
        raise NotWritableError(f"{made_by.node.name}.{name}")

    def torch_module(self, name: str, arguments: list[Value], keywords: dict[str, Value]) -> Record | None:
        raise NotImplementedError

    def _spread(self, elts: Iterable[ast.expr], evaluate: Callable[[ast.expr], Value]) -> list[Value]:
        out: list[Value] = []
        for elt in elts:
            if isinstance(elt, ast.Starred):
                value = evaluate(elt.value)
                out += [Code(ast.Starred(value.expr, ast.Load()))] if isinstance(value, Code) else unrolled(value)
            else:
                out.append(evaluate(elt))
        return out

    def _call(
        self, node: ast.Call, function: Value, arguments: list[Value], keywords: list[ast.keyword],
        evaluate: Callable[[ast.expr], Value],
    ) -> Value:  # fmt: skip
        if isinstance(function, Known) and function.value is make:  # its checks are for plug-ins only
            return self.call(self.implementation(type(plain(arguments[0]))), arguments, {})
        named_arguments = {keyword.arg: evaluate(keyword.value) for keyword in keywords if keyword.arg}
        match function:
            case Known(value=known, code=code):
                return self._call_known(known, code, arguments, named_arguments)
            case Native(function=native):
                return native(*arguments, **named_arguments)
            case Code(expr=expr):
                name = dotted(expr)
                if name == "F.dropout" and isinstance(arguments[1], Known) and arguments[1].value == 0:
                    return arguments[0]
                if torch_module := self.torch_module(name, arguments, named_arguments):
                    return torch_module
                while arguments and isinstance(arguments[-1], Known) and arguments[-1].value is None:
                    arguments = arguments[:-1]
                kept = {name: value for name, value in named_arguments.items() if not is_default(name, value)}
                keywords = [ast.keyword(name, lift(value)) for name, value in kept.items()]
                return Code(ast.Call(expr, [lift(value) for value in arguments], keywords))
            case _:
                return self.call(function, arguments, named_arguments)

    def _call_known(
        self, known: Any, code: ast.expr | None, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if known is isinstance:
            return Known(is_instance(*arguments))
        if known is implementation_of:
            return self.implementation(plain(arguments[0]))
        if known is getattr and len(arguments) == 2:
            return self.attribute(arguments[0], plain(arguments[1]))
        if known is setattr and isinstance(record := arguments[0], Record):
            return _set(record, *arguments[1:])
        if known is len and isinstance(arguments[0], Sequence):
            return Known(len(arguments[0].items))
        try:
            values, named_values = [plain(value) for value in arguments], {k: plain(v) for k, v in keywords.items()}
        except NotWritableError:
            function = known.__func__ if isinstance(known, MethodType) else known
            if isinstance(function, FunctionType) and function.__module__.startswith("archlab"):
                home, node = definition(function)
                owner = [Known(known.__self__)] if isinstance(known, MethodType) else []
                return self.call(Function(node, home), [*owner, *arguments], keywords)
            if code is None:
                raise
            return Code(
                ast.Call(code, [lift(v) for v in arguments], [ast.keyword(k, lift(v)) for k, v in keywords.items()])
            )
        result = known(*values, **named_values)
        # Write a logarithm as code, because that is readable. Write only the results of rounding and comparisons.
        readable = isinstance(code, ast.Attribute) and not isinstance(result, int) and not keywords
        return Known(result, ast.Call(code, [lift(value) for value in arguments], []) if readable and code else None)

    def implementation(self, config: type[Base]) -> Value:
        """Return the function or class in archlab.model that implements the component with this config class."""
        return next(self._implementations[base] for base in config.__mro__ if base in self._implementations)

    @cached_property
    def _implementations(self) -> dict[type[Base], Value]:
        return {
            plain(self.evaluate(kind, {}, home)): self.top(name, home)
            for home in modules("archlab.model")
            for name, node in home.names.items()
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            for mark in node.decorator_list
            if isinstance(mark, ast.Call) and dotted(mark.func) == "implements"
            for kind in mark.args
        }

    def _binary(self, op: ast.operator, left: Value, right: Value) -> Value:
        removable_left, removable_right = (ast.Mult, ast.Add), (ast.Mult, ast.Add, ast.Div)
        for operand, other, removable in ((left, right, removable_left), (right, left, removable_right)):
            neutral = 0 if isinstance(op, ast.Add) else 1
            is_neutral = isinstance(operand, Known) and not isinstance(operand.value, bool) and operand.value == neutral
            if isinstance(op, removable) and is_neutral and isinstance(other, Code):
                return other
        if isinstance(left, Sequence) and isinstance(right, Sequence) and isinstance(op, ast.Add):
            return Sequence((*left.items, *right.items))
        return fold(OPERATORS[type(op)], lambda a, b: ast.BinOp(a, op, b), left, right)


def _part(record: Record, name: str) -> Value:
    """Return an attribute of a record.

    If the attribute is a tensor of a module, return the code that reads it, such as `self.weight`. If it is a
    submodule, also set its `path`.
    """
    value = record.attributes[name]
    if not record.is_module or record.path is None:
        return value
    path = ast.Attribute(record.path, name, ast.Load())
    if isinstance(value, Record) and value.is_module:
        value.path, value.name = path, name
    if (
        isinstance(value, Known)
        and value.code is not None
        and any(not hasattr(n, "constant") for n in names_in(value.code))
    ):
        return Known(value.value)  # its code uses names that exist in __init__ only
    if isinstance(value, Sequence) and all(isinstance(item, Known) for item in value.items):
        return Known(plain(value), constant(name.upper(), plain(value)))
    return Code(path) if isinstance(value, Code) else value


def dotted(expr: ast.expr) -> str:
    """Return the text of an expression like `a.b.c`, or an empty string for an expression that is not a dotted name."""
    match expr:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=attr) if home := dotted(inner):
            return f"{home}.{attr}"
        case _:
            return ""


def _set(record: Record, name: Value, value: Value, *_: Value) -> Value:
    record.attributes[plain(name)] = value
    return Known(None)


MODULE_METHODS: dict[str, Callable[..., Value]] = {
    "add_module": _set,
    "register_buffer": _set,
}
"""Methods of nn.Module that `flatten` understands in an `__init__` of archlab.model."""


def _import(source: str, name: str) -> Any:
    home = importlib.import_module(source)
    return getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{source}.{name}")
