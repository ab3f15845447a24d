"""Digest of the code that determines the result of a run."""

import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from archlab.code import HOME, normalized
from archlab.data.file_cache import cached

_DECIDING = ("config", "data", "model", "pricing", "transplant", "training")
"""Packages whose code determines the result of a run."""


@cache
def code_digest() -> str:
    """Return a digest of 12 hex digits, which changes if the code that determines the result of a run changes.

    Comments, docstrings and formatting do not affect the digest.
    """
    files = {package: sorted((HOME / package).rglob("*.py")) for package in _DECIDING}
    key = ["code", str(HOME), sys.version_info[:2]]  # Python's syntax tree differs between versions
    how = [Path(inspect.getfile(normalized)), Path(__file__)]
    return cached(key, [*how, *(file for group in files.values() for file in group)], lambda: _digest(files))


def _digest(files: Mapping[str, Iterable[Path]]) -> str:
    digest = hashlib.sha256()
    for package, group in files.items():
        for file in group:
            text = normalized(file.read_text(encoding="utf-8"))
            digest.update(f"{file.relative_to(HOME / package)}\0{text}\0".encode())
    return digest.hexdigest()[:12]
