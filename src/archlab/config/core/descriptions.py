"""Descriptions of the fields of models: the docstring below each field, read from the source when it is asked for.

Pydantic's `use_attribute_docstrings` reads them all whenever the classes are made, which takes a third of the time that
a command needs to start.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel


def description(model: type[BaseModel], name: str) -> str | None:
    """Return the description of a field, or None if it has none."""
    if text := model.model_fields[name].description:
        return text
    owner = next((base for base in model.__mro__ if name in inspect.get_annotations(base)), model)
    return _docstrings_of(owner).get(name)


@cache
def _docstrings_of(owner: type) -> Mapping[str, str]:
    try:
        file = inspect.getfile(owner)
    except (OSError, TypeError):  # a class without source, as of an interactive session
        return {}
    return _docstrings_in(file).get(owner.__qualname__, {})


@cache
def _docstrings_in(file: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of the attributes of each class in a file, by the class's qualified name."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError):
        return {}
    return {name: dict(_docstrings(node)) for name, node in _classes(tree, "")}


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef():
                yield prefix + child.name, child
                yield from _classes(child, f"{prefix}{child.name}.")
            case ast.FunctionDef():
                yield from _classes(child, f"{prefix}{child.name}.<locals>.")
            case ast.stmt():
                yield from _classes(child, prefix)


def _docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
