"""Text tables that fit the width of the terminal. The widest column is wrapped first, and only between words."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from archlab.config.core.text import visible

FIXED = "\u00a0"
"""Non-breaking space."""

_PIECE_ENDS = re.compile(r"(?<= )|(?<=[-./])(?=[A-Za-z])")
"""Positions at which a line may be broken: after a space, and inside `pre-norm`, `model.norm.kind` and `runs/a`, but
not inside a number."""


class Table(NamedTuple):
    """Column headings, and the rows below them. All columns except the first hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def fitted(rows: Sequence[Sequence[str]], room: int) -> Iterator[tuple[str, ...]]:
    """Yield the rows with cells wrapped so that the table is at most `room` columns wide, if this is possible."""
    whole = [[visible(cell) for cell in column] for column in zip(*rows, strict=True)]
    columns, open_ = list(whole), set(range(len(whole)))
    while open_ and sum(map(_extent, columns)) > room:
        widest = max(open_, key=lambda i: _extent(columns[i]))
        narrower = [_broken(cell, _extent(columns[widest]) - 1) for cell in whole[widest]]
        if _extent(narrower) < _extent(columns[widest]):
            columns[widest] = narrower
        else:
            open_.remove(widest)
    yield from zip(*([cell.replace(FIXED, " ") for cell in column] for column in columns), strict=True)


def _extent(cells: Sequence[str]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.split("\n"))


def _broken(text: str, width: int) -> str:
    """Wrap the text to lines of at most this width. If a piece between two `_PIECE_ENDS` is longer, it stays whole."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for piece in _PIECE_ENDS.split(line):
            if lines[-1] and cell_len(f"{lines[-1]}{piece}".rstrip(" ")) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line.rstrip(" ") for line in lines)
