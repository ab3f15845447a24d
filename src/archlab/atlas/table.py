"""The evolution as lines for the terminal, from 80 columns on."""

import textwrap
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import groupby
from typing import NamedTuple

from archlab.atlas import cells
from archlab.atlas.rows import Row
from archlab.atlas.select import value_of

_INDENT = "    "
_BESIDE = 40
"""Columns to the right of the figures from which on the remarks stand there."""

Line = tuple[str, str]
"""A text, and its style for rich."""


class _Form(NamedTuple):
    """What stands in columns, what in words, and what explains it."""

    headings: tuple[str, ...]
    cells: Callable[[Row], tuple[str, ...]]
    remarks: Callable[[Row], list[str]]
    legend: tuple[str, ...]
    fields: Set[str]
    """Of a row, that stand in columns."""


_NARROW = _Form(
    cells.HEADINGS,
    cells.cells,
    lambda row: [*([f"{active} active"] if (active := cells.active(row)) else []), *cells.remarks(row)],
    (*cells.LEGEND, *cells.LEGEND_OF_MARKS),
    cells.FIELDS,
)
_WIDE = _Form(
    (*cells.HEADINGS, *cells.MORE),
    lambda row: (*cells.cells(row), *cells.more(row)),
    cells.remarks,
    (*cells.LEGEND, *cells.LEGEND_OF_MORE, *cells.LEGEND_OF_MARKS),
    cells.FIELDS | cells.MORE_FIELDS,
)


def evolution(
    rows: Sequence[Row], width: int = 100, asked: Sequence[str] = (), *, by_year: bool = True
) -> Iterator[Line]:
    """Per model its figures, and what is special about it: to their right if the terminal is wide, else below.

    `asked`: fields whose values come first in what is special, where no column has them.
    """
    form, widths = _WIDE, _widths(_WIDE, rows)
    if sum(widths) + len(widths) + _BESIDE >= width:
        form, widths = _NARROW, _widths(_NARROW, rows)
    asked = [field for field in asked if field not in form.fields and not (by_year and field == "year")]
    indent = " " * (sum(widths) + len(widths) + 1)
    beside = width - len(indent) >= _BESIDE
    yield _line(form.headings, widths), "bold"
    for year, group in groupby(rows, key=lambda row: row.about.year if by_year else None):
        if year is not None:
            yield str(year), "bold cyan"
        for row in group:
            figures = _line(form.cells(row), widths)
            special = "; ".join([*(_value(row, field) for field in asked), *form.remarks(row)])
            if beside:
                lines = _wrapped(special, width, indent) or [indent]
                yield (figures.ljust(len(indent)) + lines[0].removeprefix(indent)).rstrip(), ""
                yield from ((line, "") for line in lines[1:])
            else:
                yield figures, ""
                yield from ((line, "dim") for line in _wrapped(special, width, _INDENT))
    for line in form.legend:
        yield from ((part, "dim") for part in _wrapped(line, width, ""))


def _widths(form: _Form, rows: Sequence[Row]) -> list[int]:
    shown = [form.cells(row) for row in rows]
    return [max(map(len, column)) for column in zip(form.headings, *shown, strict=True)]


def _value(row: Row, field: str) -> str:
    """`weight_decay 0.1`."""
    value = value_of(row, field)
    return f"{field} {value:,.4g}" if isinstance(value, float) else f"{field} {'unknown' if value is None else value}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of that width; on a terminal that is narrower than any table, of 40."""
    return textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, figures to the right."""
    headings = (*cells.HEADINGS, *cells.MORE)
    padded = (
        text.rjust(width) if heading in cells.FIGURES else text.ljust(width)
        for text, width, heading in zip(texts, widths, headings, strict=False)
    )
    return " ".join(padded).rstrip()
