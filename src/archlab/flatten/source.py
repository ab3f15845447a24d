"""The model's own source, read without running it: torch is not loaded."""

import ast
import importlib.util
import inspect
import io
import tokenize
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType


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
    """The module of that dotted name."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Module(name, Path(spec.origin).read_text())


@cache
def definition(function: FunctionType) -> tuple[Module, ast.FunctionDef]:
    """Where a function of an imported module, or the getter of a property, is defined."""
    home, line = module(function.__module__), inspect.getsourcelines(function)[1]
    for node in (inner for top in home.names.values() for inner in ast.walk(top)):
        if isinstance(node, ast.FunctionDef) and line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return home, node
    raise LookupError(function.__qualname__)
