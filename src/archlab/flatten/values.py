"""The model's source, and values during partial evaluation.

The source is read without running it, so torch is not loaded. A value may be known completely, known in parts, or known
only as the expression that computes it in the file.
"""

import ast
import inspect
import io
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

_HOME = Path(__file__).parent.parent


@dataclass(frozen=True, eq=False)
class Module:
    """A module of the model's source."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """Name at the top level -> the statement that sets it: a definition, an assignment or an import."""
        statements: dict[str, ast.stmt] = {}
        for node in ast.parse(self.text).body:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    statements[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    statements[name] = node
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    statements |= {alias.asname or alias.name: node for alias in aliases}
                case _:
                    pass
        return statements

    @cached_property
    def _comments(self) -> dict[int, tuple[str, bool]]:
        """Line -> comment, and whether it is alone on its line. Comments for tools are left out."""
        return {
            token.start[0]: (token.string, token.line.lstrip().startswith("#"))
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline)
            if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# pyright"))
        }

    def above(self, node: ast.stmt) -> list[str]:
        """Return the comments directly above a statement."""
        first = node.lineno
        while self._comments.get(first - 1, ("", False))[1]:
            first -= 1
        return [self._comments[line][0] for line in range(first, node.lineno)]

    def behind(self, node: ast.stmt) -> str:
        """Return the comment at the end of a statement's last line, or an empty text."""
        text, alone = self._comments.get(node.end_lineno or node.lineno, ("", False))
        return "" if alone else text


@cache
def module(name: str) -> Module:
    """Return a module by its dotted name, without importing it."""
    return Module(name, _HOME.joinpath(*name.split(".")[1:]).with_suffix(".py").read_text())


def modules(package: str) -> list[Module]:
    """Return all modules of a package, without importing it."""
    folder = _HOME.joinpath(*package.split(".")[1:])
    return [module(f"{package}.{file.stem}") for file in sorted(folder.glob("*.py")) if file.stem != "__init__"]


@cache
def definition(function: FunctionType) -> tuple[Module, ast.FunctionDef]:
    """Return the module and the definition of a function or of the getter of a property."""
    home, line = module(function.__module__), inspect.getsourcelines(function)[1]
    for node in (inner for top in home.names.values() for inner in ast.walk(top)):
        if isinstance(node, ast.FunctionDef) and line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return home, node
    raise LookupError(function.__qualname__)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """A value of the config, or one that follows from it."""

    value: Any
    code: ast.expr | None = None
    """The expression to write in the file, with names of constants. None: the value itself is written."""


@dataclass(frozen=True, eq=False)
class Code:
    """A value that is known only when the file runs, usually a tensor. It is never None."""

    expr: ast.expr


@dataclass(frozen=True, eq=False)
class Sequence:
    """A tuple or list of known length."""

    items: tuple["Value", ...]


@dataclass(frozen=True, eq=False)
class Table:
    """A dictionary with known keys."""

    items: dict[Any, "Value"]


@dataclass(frozen=True, eq=False)
class Function:
    """A function or lambda of the source. `names`: those of enclosing functions."""

    node: ast.FunctionDef | ast.Lambda
    home: Module
    names: dict[str, "Value"] = field(default_factory=dict)
    owner: "Record | None" = None


@dataclass(frozen=True, eq=False)
class Native:
    """A function of archlab that replaces one that cannot be in the file."""

    function: Callable[..., "Value"]
    """Takes values, by position and by name."""


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the source."""

    node: ast.ClassDef
    home: Module

    def method(self, name: str) -> ast.FunctionDef | None:
        """Return a method of the class itself, not of a base class."""
        return next((n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)

    @cached_property
    def is_module(self) -> bool:
        """Whether the class is a torch module."""
        return any("Module" in ast.unparse(base) for base in self.node.bases)


@dataclass(eq=False)
class Record:
    """An instance of a class of the source, or of a torch module."""

    made_by: "Class | str"
    """The class, or the name of torch's class."""
    attributes: dict[str, "Value"] = field(default_factory=dict)
    path: ast.expr | None = None
    """Expression by which `forward` reads a module, such as `self.norm`."""
    making: ast.expr | None = None
    """The call that creates it in the file, once that is known."""
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    """Parameter of `__init__` that the class of the file keeps -> argument."""
    name: str = ""
    """Name of the attribute that holds a module."""
    parameters: tuple[str, ...] = ()
    """Parameters of its `forward` in the file."""
    initial: dict[str, "Value"] = field(default_factory=dict)
    """Parameter -> initial value, for parameters that start at a constant."""

    @property
    def is_module(self) -> bool:
        return isinstance(self.made_by, str) or self.made_by.is_module

    @property
    def holds_tensors(self) -> bool:
        """Whether it must be in the file, because it or a module in it has parameters, buffers or torch modules."""
        if isinstance(self.made_by, str):
            return self.made_by != "nn.Identity"
        own = self.attributes.values()
        return self.is_module and any(isinstance(v, Code) or (isinstance(v, Record) and v.holds_tensors) for v in own)


Value = Known | Code | Sequence | Table | Function | Native | Class | Record


def named(name: str) -> ast.Name:
    """Return the expression that reads a name."""
    return ast.Name(name, ast.Load())


def loads(node: ast.AST) -> tuple[str, ...]:
    """Return the names that a syntax tree reads, each as often as it is read."""
    return _names(node)[0]


def stores(node: ast.AST) -> tuple[str, ...]:
    """Return the names that a syntax tree sets."""
    return _names(node)[1]


def _names(node: ast.AST) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that are read and set. They are cached in the node, because nodes never change."""
    if not hasattr(node, "read_and_set"):
        names, left = list[ast.Name](), [node]
        while left:
            match left.pop():
                case ast.Name() as name:
                    names.append(name)
                case ast.AST(_fields=fields) as other:
                    for part in (getattr(other, field, None) for field in fields):
                        left += part if isinstance(part, list) else [part]
                case _:
                    pass
        loaded, stored = (tuple(n.id for n in reversed(names) if isinstance(n.ctx, c)) for c in (ast.Load, ast.Store))
        node.read_and_set = loaded, stored  # pyright: ignore[reportAttributeAccessIssue]
    return node.read_and_set  # pyright: ignore[reportAttributeAccessIssue]


def codes(value: Value) -> list[ast.expr]:
    """Return the expressions of a function's result. For a record, these are the expressions of its fields."""
    match value:
        case Code(expr=expr):
            return [expr]
        case Sequence(items=items):
            return [expr for item in items for expr in codes(item)]
        case Record(attributes=attributes, is_module=False):
            return [expr for item in attributes.values() for expr in codes(item)]
        case _:
            return []
