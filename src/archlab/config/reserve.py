"""Entries of `data.reserve`: special tokens that a tokenizer reserves for an objective."""

import re
from typing import Annotated

from pydantic import AfterValidator

MASK = "mask"
"""Entry for one mask token."""
SENTINELS = "sentinels:"
"""Beginning of the entry for sentinels. Their number follows."""
MODE = "mode:"
"""Beginning of the entry for one mode token. The name of the mode follows."""


def _mode(name: str) -> str:
    if not re.fullmatch(r"\w{1,32}", name, re.ASCII):
        raise ValueError(f"{name!r}; allowed: up to 32 letters, digits and _, as in R")
    if name == "MASK":
        raise ValueError("'MASK'; allowed: other names, because [MASK] is the name of a mask token")
    return name


Mode = Annotated[str, AfterValidator(_mode)]
"""Name of a mode. The name of its token is in brackets, such as `[R]`."""


def _reserved(what: str) -> str:
    if what.startswith(MODE):
        _mode(what.removeprefix(MODE))
    elif not re.fullmatch(rf"{MASK}|{SENTINELS}[1-9]\d{{0,3}}", what):
        raise ValueError(
            f"{what!r}; allowed: mask, sentinels:N with N from 1 to 9999, or mode:NAME with the name of a mode"
        )
    return what


Reserved = Annotated[str, AfterValidator(_reserved)]
"""Special tokens that a tokenizer reserves for an objective."""
