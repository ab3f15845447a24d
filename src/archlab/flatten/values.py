"""The model's source, and values during partial evaluation.

The source is parsed without running it, so torch is not loaded. A value may be known completely or in parts. If it is
not known, only the expression that computes it in the flattened file is known.
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
    """Parsed module of the model's source."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """Statement that defines each top-level name: a definition, an assignment or an import."""
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
        return {
            token.start[0]: (token.string, token.line.lstrip().startswith("#"))
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline)
            if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# pyright"))
        }

    def above(self, node: ast.stmt) -> list[str]:
        first = node.lineno
        while self._comments.get(first - 1, ("", False))[1]:
            first -= 1
        return [self._comments[line][0] for line in range(first, node.lineno)]

    def behind(self, node: ast.stmt) -> str:
        text, alone = self._comments.get(node.end_lineno or node.lineno, ("", False))
        return "" if alone else text


@cache
def module(name: str) -> Module:
    return Module(name, _HOME.joinpath(*name.split(".")[1:]).with_suffix(".py").read_text())


def modules(package: str) -> list[Module]:
    folder = _HOME.joinpath(*package.split(".")[1:])
    return [module(f"{package}.{file.stem}") for file in sorted(folder.glob("*.py")) if file.stem != "__init__"]


@cache
def definition(function: FunctionType) -> tuple[Module, ast.FunctionDef]:
    home, line = module(function.__module__), inspect.getsourcelines(function)[1]
    for node in (inner for top in home.names.values() for inner in ast.walk(top)):
        if isinstance(node, ast.FunctionDef) and line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return home, node
    raise LookupError(function.__qualname__)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """Value of the config, or a value computed from the config alone."""

    value: Any
    code: ast.expr | None = None
    """Expression to write in the flattened file, with names of constants. None: write the value itself."""


@dataclass(frozen=True, eq=False)
class Code:
    """Value that is computed only when the flattened file runs, usually a tensor. It is never None."""

    expr: ast.expr


@dataclass(frozen=True, eq=False)
class Sequence:
    """Tuple or list of known length."""

    items: tuple["Value", ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Dictionary with known keys."""

    items: dict[Any, "Value"]


@dataclass(frozen=True, eq=False)
class Function:
    """Function or lambda of the model's source. `names` holds the local names of the enclosing functions."""

    node: ast.FunctionDef | ast.Lambda
    home: Module
    names: dict[str, "Value"] = field(default_factory=dict)
    owner: "Record | None" = None


@dataclass(frozen=True, eq=False)
class Native:
    """Function of archlab that replaces a function that cannot be in the flattened file."""

    function: Callable[..., "Value"]
    """Replacement function. It takes values as positional and keyword arguments."""


@dataclass(frozen=True, eq=False)
class Class:
    """Class of the model's source."""

    node: ast.ClassDef
    home: Module

    def method(self, name: str) -> ast.FunctionDef | None:
        """Return a method that the class itself defines, or None. Inherited methods do not count."""
        return next((n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)

    @cached_property
    def is_module(self) -> bool:
        return any("Module" in ast.unparse(base) for base in self.node.bases)


@dataclass(eq=False)
class Record:
    """Instance of a class of the model's source, or of a torch module."""

    made_by: "Class | str"
    """Class of the model's source, or the name of a torch class."""
    attributes: dict[str, "Value"] = field(default_factory=dict)
    path: ast.expr | None = None
    """Expression with which `forward` reads the module, such as `self.norm`."""
    creation: ast.expr | None = None
    """Call that creates the instance in the flattened file, once it is known."""
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    """Arguments for the parameters of `__init__` that remain in the flattened file, by parameter."""
    name: str = ""
    """Name of the attribute that holds the module."""
    parameters: tuple[str, ...] = ()
    """Parameters of the module's `forward` in the flattened file."""
    initial: dict[str, "Value"] = field(default_factory=dict)
    """Initial value by parameter, for parameters that are initialized to a constant."""

    @property
    def is_module(self) -> bool:
        return isinstance(self.made_by, str) or self.made_by.is_module

    @property
    def holds_tensors(self) -> bool:
        """Whether the instance must be in the flattened file.

        This is the case if it or a submodule has parameters, buffers or torch modules.
        """
        if isinstance(self.made_by, str):
            return self.made_by != "nn.Identity"
        own = self.attributes.values()
        return self.is_module and any(isinstance(v, Code) or (isinstance(v, Record) and v.holds_tensors) for v in own)


Value = Known | Code | Sequence | Table | Function | Native | Class | Record


def named(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def loads(node: ast.AST) -> tuple[str, ...]:
    """Return the names that a syntax tree reads, repeated for each read."""
    return _names(node)[0]


def stores(node: ast.AST) -> tuple[str, ...]:
    return _names(node)[1]


def _names(node: ast.AST) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two tuples: the names that are read and the names that are assigned.

    They are cached in the node, because nodes never change.
    """
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
