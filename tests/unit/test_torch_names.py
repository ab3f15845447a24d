"""The names that archlab and `benchmarks/gpu.py` take from torch, so that a person can look them up in older releases.

The list leaves out the first part of each name, `torch`.

`python tests/unit/test_torch_names.py` writes the list again. docs/speed.md lists the youngest names.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("torch_names.txt")
OF_GPU = ("gpu", "gpu_entrants", "decode", "peers", "rounds", "train")
FILES = [*ROOT.glob("src/archlab/**/*.py"), *(ROOT / "benchmarks" / f"{name}.py" for name in OF_GPU)]


def names_in(file: Path) -> Iterator[str]:
    """Yield the names from torch in a file with their modules, such as torch.nn.functional.pad."""
    tree = ast.parse(file.read_text())
    origins = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origins |= {a.asname or "torch": a.name if a.asname else "torch" for a in node.names if is_torch(a.name)}
        elif isinstance(node, ast.ImportFrom) and is_torch(node.module or ""):
            origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    yield from origins.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (found := chain(node)) and found[0] in origins:
            yield ".".join((origins[found[0]], *found[1:]))


def is_torch(module: str) -> bool:
    return module.split(".")[0] == "torch"


def chain(node: ast.expr) -> list[str]:
    """Return ["a", "b", "c"] for the expression a.b.c, and an empty list for others."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = chain(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if isinstance(node, ast.Attribute) and before else []


def used() -> list[str]:
    """Return all names in alphabetical order, without `torch` in front of them and without archlab's own operators."""
    names = {name.removeprefix("torch").removeprefix(".") for file in FILES for name in names_in(file)}
    return sorted(name for name in names if name and not name.startswith("ops.archlab"))


def test_the_list_of_names_from_torch_is_complete() -> None:
    assert LIST.read_text().split() == used(), "run python tests/unit/test_torch_names.py, and look at docs/speed.md"


def test_the_installed_torch_has_all_names() -> None:
    for name in used():
        module, found = "torch", cast(Any, torch)
        for part in name.split("."):
            module = f"{module}.{part}"
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(module)


if __name__ == "__main__":
    LIST.write_text("\n".join(used()) + "\n")
