"""The evolution as lines for the terminal, from 80 columns on."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from archlab.atlas.cells import HEADINGS, LEGEND, cells, remarks
from archlab.atlas.rows import Row

_INDENT = "    "
_BESIDE = 40
"""Columns to the right of the figures from which on the remarks stand there."""

Line = tuple[str, str]
"""A text, and its style for rich."""


def evolution(rows: Sequence[Row], width: int = 100) -> Iterator[Line]:
    """Per model its figures, and what is special about it: to their right if the terminal is wide, else below."""
    shown = [cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *shown, strict=True)]
    indent = " " * (sum(widths) + len(widths) + 1)
    beside = width - len(indent) >= _BESIDE
    yield _line(HEADINGS, widths), "bold"
    for year, group in groupby(zip(rows, shown, strict=True), key=lambda pair: pair[0].about.year):
        yield str(year), "bold cyan"
        for row, texts in group:
            figures, special = _line(texts, widths), "; ".join(remarks(row))
            if beside:
                lines = _wrapped(special, width, indent) or [indent]
                yield (figures.ljust(len(indent)) + lines[0].removeprefix(indent)).rstrip(), ""
                yield from ((line, "") for line in lines[1:])
            else:
                yield figures, ""
                yield from ((line, "dim") for line in _wrapped(special, width, _INDENT))
    for line in LEGEND:
        yield from ((part, "dim") for part in _wrapped(line, width, ""))


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of that width; on a terminal that is narrower than any table, of 40."""
    return textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, the four figures at the end and the size to the right."""
    right = {1, 6, 7, 8}
    padded = (
        text.rjust(width) if i in right else text.ljust(width)
        for i, (text, width) in enumerate(zip(texts, widths, strict=True))
    )
    return " ".join(padded).rstrip()
