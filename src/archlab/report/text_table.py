"""Text tables that fit the width of the terminal. The widest column is wrapped first, and only between words."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from archlab.config.core.text import visible

FIXED = "\u00a0"
"""Non-breaking space."""

_PIECE_ENDS = re.compile(r"(?<= )|(?<=[-./])(?=[A-Za-z])")
"""Positions at which a line may be broken: after a space, and inside `pre-norm`, `model.norm.kind` and `runs/a`, but
not inside a number."""


_UNBOUNDED = 10_000
"""Width, in terminal columns, that is larger than that of any table."""

_FEW = 4
"""Maximum number of columns of a table that is never split in two."""


class Table(NamedTuple):
    """Column headings, and the rows below them. All columns except the first hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_columns(
    out: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Print rows under their headings. The columns named in `right` are right-aligned.

    If the terminal is too narrow, print two tables: each has the first column and half of the other columns.
    """
    rows = [*rows]
    heading, *cells = fitted([columns, *([str(cell) for cell in row] for row in rows)], out.width - 2 * len(columns))
    if len(columns) > _FEW and any("\n" in row[0] for row in cells):
        half = len(columns) // 2 + 1
        for part in (slice(1, half), slice(half, None)):
            print_columns(out, (columns[0], *columns[part]), [(row[0], *row[part]) for row in rows], right=right)
        return
    table = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name, title in zip(columns, heading, strict=True):
        table.add_column(title, justify="right" if name in right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    show_table(out, table)


def show_table(out: Console, table: RichTable) -> None:
    """Print a table whose cells are already wrapped. Rich does not shorten a table that is wider than the terminal."""
    width = out.width
    out.width = max(width, out.measure(table, options=out.options.update(max_width=_UNBOUNDED)).maximum)
    out.print(table)
    out.width = width


def labeled(label: str, text: str, indent: int, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns, indented by `indent`, with its label before the first line."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=f"{label:<{indent}}",
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


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
