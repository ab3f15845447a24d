"""Modules of archlab.model as syntax trees, and the values of a partial evaluation.

The modules are parsed but not imported, so torch is not loaded. A value may be known completely or in part. For an
unknown value, there is only the expression that computes it in the flattened file.
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
    """Parsed module of archlab.model."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """Mapping from each top-level name to the statement that defines it: a function, a class, an assignment or an
        import."""
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
    """Known value: it comes from the config, or it is computed from the config alone."""

    value: Any
    code: ast.expr | None = None
    """Expression to write in the flattened file, such as `D_MODEL // 2`. None means that the value itself is
    written."""


@dataclass(frozen=True, eq=False)
class Code:
    """Unknown value: it is computed when the flattened file runs. Usually it is a tensor; it is never None."""

    expr: ast.expr


@dataclass(frozen=True, eq=False)
class Sequence:
    """Tuple or list of known length. Its items may be unknown."""

    items: tuple["Value", ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Dictionary with known keys. Its values may be unknown."""

    items: dict[Any, "Value"]


@dataclass(frozen=True, eq=False)
class Function:
    """Function or lambda in archlab.model. If it is defined inside another function, `names` contains the local
    variables of that function."""

    node: ast.FunctionDef | ast.Lambda
    home: Module
    names: dict[str, "Value"] = field(default_factory=dict)
    owner: "Record | None" = None


@dataclass(frozen=True, eq=False)
class Native:
    """Python function that `flatten` calls in place of a function or method that it cannot evaluate."""

    function: Callable[..., "Value"]
    """The function to call. Its arguments and its result are values of the partial evaluation."""


@dataclass(frozen=True, eq=False)
class Class:
    """Class in archlab.model."""

    node: ast.ClassDef
    home: Module

    def method(self, name: str) -> ast.FunctionDef | None:
        """Return a method that the class itself defines, or None. Inherited methods do not count."""
        return next((n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)

    @cached_property
    def fields(self) -> dict[str, ast.AnnAssign]:
        """Fields of a dataclass by name."""
        nodes = [node for node in self.node.body if isinstance(node, ast.AnnAssign)]
        return {node.target.id: node for node in nodes if isinstance(node.target, ast.Name)}

    @cached_property
    def is_module(self) -> bool:
        return any("Module" in ast.unparse(base) for base in self.node.bases)


@dataclass(eq=False)
class Record:
    """Instance of a class in archlab.model, or of a torch module."""

    made_by: "Class | str"
    """Class in archlab.model, or the name of a torch class."""
    attributes: dict[str, "Value"] = field(default_factory=dict)
    path: ast.expr | None = None
    """Expression for the module in the `forward` that calls it, such as `self.norm`."""
    creation: ast.expr | None = None
    """Call that creates the module in the flattened file. None until its class has been written."""
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    """Mapping from parameters of `__init__` to arguments. Contains only parameters that stay parameters in the
    flattened file."""
    name: str = ""
    """Name of the attribute that contains the module."""
    parameters: tuple[str, ...] = ()
    """Parameters of the module's `forward` in the flattened file."""
    initial: dict[str, "Value"] = field(default_factory=dict)
    """Mapping from names of nn.Parameters to initial values. Contains only those that are initialized to a constant."""

    @property
    def is_module(self) -> bool:
        return isinstance(self.made_by, str) or self.made_by.is_module

    @property
    def holds_tensors(self) -> bool:
        """Whether the instance becomes a module in the flattened file.

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
    """Return the names that a syntax tree reads. A name that is read twice is returned twice."""
    return _names(node)[0]


def stores(node: ast.AST) -> tuple[str, ...]:
    return _names(node)[1]


def _names(node: ast.AST) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two tuples: the names that are read and the names that are assigned.

    The result is cached in the node. Nodes are never modified.
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
    """Return the expressions of all unknown values in the result of a function: in a tuple, or in the fields of a
    Record."""
    match value:
        case Code(expr=expr):
            return [expr]
        case Sequence(items=items):
            return [expr for item in items for expr in codes(item)]
        case Record(attributes=attributes, is_module=False):
            return [expr for item in attributes.values() for expr in codes(item)]
        case _:
            return []
