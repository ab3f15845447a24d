"""Which code made a number."""

import ast
import hashlib
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).parent
"""The folder of the package archlab."""

_DECIDING = ("config", "data", "model", "pricing", "training")
"""The packages whose code decides a run's result."""


@cache
def code_digest() -> str:
    """12 hex digits that change with the code that decides a run's result, and not with what is said about it."""
    digest = hashlib.sha256()
    for package in _DECIDING:
        folder = HOME / package
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\0{meaning(file.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()[:12]


def commit() -> str | None:
    """Commit of the checkout that archlab runs from, `-dirty` if it has changes; None if archlab is installed."""
    command = ("git", "-C", str(HOME), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def meaning(source: str) -> str:
    """The code without comments, docstrings and the way in which it is laid out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not _is_text(statement)]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(tree)


def imported_from_beside(file: Path) -> list[str]:
    """The modules that a file of Python imports and that lie in its folder, as it names them."""
    found = (_imported(node) for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return sorted({name for names in found for name in names if name.startswith(".") or _is_beside(name, file.parent)})


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name.partition(".")[0] for alias in node.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [module.partition(".")[0]]
        case ast.ImportFrom():
            return ["." * node.level + (node.module or "")]
        case _:
            return []


def _is_beside(name: str, folder: Path) -> bool:
    """Whether it is there, and Python finds no other of that name."""
    if name == "archlab" or name in sys.stdlib_module_names:
        return False
    if not ((folder / f"{name}.py").is_file() or (folder / name).is_dir()):
        return False
    spec = find_spec(name)
    return spec is None or spec.origin is None or Path(spec.origin).parent in (folder, folder / name)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False
