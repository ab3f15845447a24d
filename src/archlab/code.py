"""Which code made a number."""

import ast
import hashlib
from functools import cache
from pathlib import Path

import archlab

_DECIDING = ("config", "cost", "data", "model", "train")
"""The packages whose code decides a run's result."""


@cache
def code_digest() -> str:
    """12 hex digits that change with the code that decides a run's result, and not with what is said about it."""
    digest = hashlib.sha256()
    for package in _DECIDING:
        home = Path(archlab.__file__).parent / package
        for file in sorted(home.rglob("*.py")):
            digest.update(f"{file.relative_to(home)}\0{meaning(file.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()[:12]


def meaning(source: str) -> str:
    """The code without comments, docstrings and the way in which it is laid out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not _is_text(statement)]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False
