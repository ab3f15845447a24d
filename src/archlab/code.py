"""Source code of archlab and of plug-ins: its folder, its commit, and a normalized form for comparisons."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).parent


def commit() -> str | None:
    """Return the commit of the checkout that archlab runs from, or None if archlab is installed as a package.

    The suffix `-dirty` marks uncommitted changes.
    """
    command = ("git", "-C", str(HOME), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def calls_to_user() -> int:
    """Return how many calls lie between the function that asks and the nearest code outside archlab: 1 if that code
    called it. A check of arguments (archlab/calls.py) may add a call."""
    level = 1
    while sys._getframe(level).f_globals["__name__"].partition(".")[0] == __package__:
        level += 1
    return level - 1


def normalized(source: str) -> str:
    """Return Python source in a standard layout, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not _is_text(statement)]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(tree)


def local_imports(file: Path) -> list[str]:
    """Return the modules that a Python file imports from its own folder, as they are written in the file: `helpers` or
    `.helpers`."""
    imports = (_imported(node) for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {name for imported in imports for name in imported}
    return sorted(name for name in names if name.startswith(".") or _is_beside(name, file.parent))


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
