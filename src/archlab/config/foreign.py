"""Folders of other libraries that can stand for a config, and the names by which they are fetched.

config/ knows no published family; who does puts a reader here (see archlab/__init__.py, where the parts meet).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

READERS: dict[str, Callable[[Path], dict[str, Any]]] = {}
"""The file that marks such a folder -> from the folder to the raw values of a config."""

FETCHERS: list[Callable[[str], Path | None]] = []
"""From a name that is no preset, file or folder here to a folder for one of the READERS; None for no such name."""


def fetched(name: str) -> Path | None:
    """The folder that somebody fetches by this name, if anyone does."""
    return next(filter(None, (fetch(name) for fetch in FETCHERS)), None)


def foreign_reader(folder: Path) -> Callable[[Path], dict[str, Any]] | None:
    """Who reads this folder, if anyone."""
    return next((reader for name, reader in READERS.items() if (folder / name).is_file()), None)
