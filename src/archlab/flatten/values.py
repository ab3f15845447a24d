"""The model's own source, read without running it (torch is not loaded), and what is known of a value when a file is
written: all of it, its parts, or only the expression that will give it."""

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
    """One file of source."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """Every name at the top, and what makes it: a definition, an assignment or an import."""
        found: dict[str, ast.stmt] = {}
        for node in ast.parse(self.text).body:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    found[name] = node
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    found |= {alias.asname or alias.name: node for alias in aliases}
                case _:
                    pass
        return found

    @cached_property
    def _comments(self) -> dict[int, tuple[str, bool]]:
        """Line -> comment, and whether it stands alone; what is for tools is left out."""
        return {
            token.start[0]: (token.string, token.line.lstrip().startswith("#"))
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline)
            if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# pyright"))
        }

    def above(self, node: ast.stmt) -> list[str]:
        """The comments that stand right above a statement."""
        first = node.lineno
        while self._comments.get(first - 1, ("", False))[1]:
            first -= 1
        return [self._comments[line][0] for line in range(first, node.lineno)]

    def behind(self, node: ast.stmt) -> str:
        """The comment behind a statement's last line; empty for none."""
        text, alone = self._comments.get(node.end_lineno or node.lineno, ("", False))
        return "" if alone else text


@cache
def module(name: str) -> Module:
    """The module of that dotted name, which may be part of a package that would load torch."""
    return Module(name, _HOME.joinpath(*name.split(".")[1:]).with_suffix(".py").read_text())


def modules(package: str) -> list[Module]:
    """All modules of a package, without loading it."""
    folder = _HOME.joinpath(*package.split(".")[1:])
    return [module(f"{package}.{file.stem}") for file in sorted(folder.glob("*.py")) if file.stem != "__init__"]


@cache
def definition(function: FunctionType) -> tuple[Module, ast.FunctionDef]:
    """Where a function of an imported module, or the getter of a property, is defined."""
    home, line = module(function.__module__), inspect.getsourcelines(function)[1]
    for node in (inner for top in home.names.values() for inner in ast.walk(top)):
        if isinstance(node, ast.FunctionDef) and line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return home, node
    raise LookupError(function.__qualname__)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """A value of the config, or what follows from it."""

    value: Any
    code: ast.expr | None = None
    """How the file writes it, where that is not the value itself: by the names of constants."""


@dataclass(frozen=True, eq=False)
class Code:
    """Known only when the file runs: a tensor, mostly. Never None."""

    expr: ast.expr


@dataclass(frozen=True, eq=False)
class Sequence:
    """A tuple or list of so many values."""

    items: tuple["Value", ...]


@dataclass(frozen=True, eq=False)
class Table:
    """A dictionary with known keys."""

    items: dict[Any, "Value"]


@dataclass(frozen=True, eq=False)
class Function:
    """A function or lambda of the source, with the names that it sees."""

    node: ast.FunctionDef | ast.Lambda
    home: Module
    names: dict[str, "Value"] = field(default_factory=dict)
    owner: "Record | None" = None


@dataclass(frozen=True, eq=False)
class Native:
    """A function of ours in the place of one that the file cannot have."""

    function: Callable[..., "Value"]
    """Of values, by position and by name."""


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the source."""

    node: ast.ClassDef
    home: Module

    def method(self, name: str) -> ast.FunctionDef | None:
        """Its own, not one of a base."""
        return next((n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)

    @cached_property
    def is_module(self) -> bool:
        """Whether it is a module of torch's."""
        return any("Module" in ast.unparse(base) for base in self.node.bases)


@dataclass(eq=False)
class Record:
    """An instance of a class of the source, or of a module of torch's own."""

    made_by: "Class | str"
    """Or the name of torch's class."""
    attributes: dict[str, "Value"] = field(default_factory=dict)
    path: ast.expr | None = None
    """Where `forward` finds it, for a module."""
    making: ast.expr | None = None
    """The call that makes it in the file, once that is known."""
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    """What the class is given in the file, by the parameters of `__init__` that it keeps."""
    name: str = ""
    """Of the attribute that holds it, for a module."""
    parameters: tuple[str, ...] = ()
    """Of its forward in the file."""
    initial: dict[str, "Value"] = field(default_factory=dict)
    """Of parameters that start at a constant."""

    @property
    def is_module(self) -> bool:
        """Whether it is a module."""
        return isinstance(self.made_by, str) or self.made_by.is_module

    @property
    def holds_tensors(self) -> bool:
        """Whether the file must have it: it has parameters, buffers or torch's own modules, here or further in."""
        if isinstance(self.made_by, str):
            return self.made_by != "nn.Identity"
        own = self.attributes.values()
        return self.is_module and any(isinstance(v, Code) or (isinstance(v, Record) and v.holds_tensors) for v in own)


Value = Known | Code | Sequence | Table | Function | Native | Class | Record


def named(name: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def loads(node: ast.AST) -> tuple[str, ...]:
    """The names that are read in it, as often as they are."""
    return _names(node)[0]


def stores(node: ast.AST) -> tuple[str, ...]:
    """The names that are set in it."""
    return _names(node)[1]


def _names(node: ast.AST) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Kept beside the node, of which they are asked again and again: syntax is never changed once others may see it."""
    if not hasattr(node, "read_and_set"):
        found, left = list[ast.Name](), [node]
        while left:
            match left.pop():
                case ast.Name() as name:
                    found.append(name)
                case ast.AST(_fields=fields) as other:
                    for part in (getattr(other, field, None) for field in fields):
                        left += part if isinstance(part, list) else [part]
                case _:
                    pass
        loaded, stored = (tuple(n.id for n in reversed(found) if isinstance(n.ctx, c)) for c in (ast.Load, ast.Store))
        node.read_and_set = loaded, stored  # pyright: ignore[reportAttributeAccessIssue]
    return node.read_and_set  # pyright: ignore[reportAttributeAccessIssue]


def codes(value: Value) -> list[ast.expr]:
    """The expressions of what a function gives, of a record those of its fields."""
    match value:
        case Code(expr=expr):
            return [expr]
        case Sequence(items=items):
            return [expr for item in items for expr in codes(item)]
        case Record(attributes=attributes, is_module=False):
            return [expr for item in attributes.values() for expr in codes(item)]
        case _:
            return []
