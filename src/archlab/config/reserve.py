"""Entries of `data.reserve`: special tokens that a tokenizer reserves for an objective."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

MASK = "mask"
"""Entry for one mask token."""
SENTINELS = "sentinels:"
"""Prefix of the entry for sentinels. Their number follows it."""
MODE = "mode:"
"""Prefix of the entry for one mode token. The name of the mode follows it."""


def _mode(name: str) -> str:
    if not re.fullmatch(r"\w{1,32}", name, re.ASCII):
        raise ValueError(f"{name!r}; allowed: up to 32 letters, digits and _, as in R")
    if name == "MASK":
        raise ValueError("'MASK'; allowed: other names, because [MASK] is the name of a mask token")
    return name


Mode = Annotated[str, AfterValidator(_mode)]
"""Name of a mode. The name of its token is in brackets, such as `[R]`."""


def _entry(entry: str) -> str:
    if entry.startswith(MODE):
        _mode(entry.removeprefix(MODE))
    elif not re.fullmatch(rf"{MASK}|{SENTINELS}[1-9]\d{{0,3}}", entry):
        raise ValueError(
            f"{entry!r}; allowed: mask, sentinels:N with N from 1 to 9999, or mode:NAME with the name of a mode"
        )
    return entry


def _once(entries: tuple[str, ...]) -> tuple[str, ...]:
    kinds = [entry if entry.startswith(MODE) else entry.partition(":")[0] for entry in entries]
    if repeated := next((kind for i, kind in enumerate(kinds) if kind in kinds[:i]), None):
        found = " and ".join(entry for entry, kind in zip(entries, kinds, strict=True) if kind == repeated)
        raise ValueError(f"{found} both reserve {repeated}; allowed: one entry for each kind of token")
    return entries


Reserve = Annotated[tuple[Annotated[str, AfterValidator(_entry)], ...], Field(strict=False), AfterValidator(_once)]
"""Special tokens that a tokenizer reserves for an objective."""
