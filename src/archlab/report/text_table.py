"""Tables as text, as narrow as the terminal: the widest column is broken first, and only between words."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from archlab.config.core.text import visible

FIXED = "\u00a0"
"""A space at which no line is broken."""

_PIECE_ENDS = re.compile(r"(?<= )|(?<=[-./])(?=[A-Za-z])")
"""Behind a space; inside `pre-norm`, `model.norm.kind` and `runs/a`, not inside a number."""


class Table(NamedTuple):
    """Rows under headings; all but the first column are numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def fitted(rows: Sequence[Sequence[str]], room: int) -> Iterator[tuple[str, ...]]:
    """The same rows with lines broken until all columns together are `room` wide, or cannot be broken any more."""
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
    """Columns of the terminal that the longest line takes."""
    return max(cell_len(line) for cell in cells for line in cell.split("\n"))


def _broken(text: str, width: int) -> str:
    """Lines of that width, as long as no piece is longer."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for piece in _PIECE_ENDS.split(line):
            if lines[-1] and cell_len(f"{lines[-1]}{piece}".rstrip(" ")) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line.rstrip(" ") for line in lines)
