"""Folders of other libraries that can stand for a config.

config/ knows no published family; who does puts a reader here (see archlab/__init__.py, where the parts meet).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

READERS: dict[str, Callable[[Path], dict[str, Any]]] = {}
"""The file that marks such a folder -> from the folder to the raw values of a config."""


def foreign_reader(folder: Path) -> Callable[[Path], dict[str, Any]] | None:
    """Who reads this folder, if anyone."""
    return next((reader for name, reader in READERS.items() if (folder / name).is_file()), None)
