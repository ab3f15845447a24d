"""The evolution as lines for the terminal, at most 80 columns wide."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from archlab.atlas.cells import HEADINGS, LEGEND, cells, remarks
from archlab.atlas.rows import Row

_INDENT = "    "

Line = tuple[str, str]
"""A text, and its style for rich."""


def evolution(rows: Sequence[Row], width: int = 100) -> Iterator[Line]:
    """Two lines or more per model: its figures, and below them what is special about it."""
    shown = [cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *shown, strict=True)]
    yield _line(HEADINGS, widths), "bold"
    for year, group in groupby(zip(rows, shown, strict=True), key=lambda pair: pair[0].about.year):
        yield str(year), "bold cyan"
        for row, texts in group:
            yield _line(texts, widths), ""
            for line in textwrap.wrap("; ".join(remarks(row)), max(width, 40) - len(_INDENT), break_long_words=False):
                yield _INDENT + line, "dim"
    for line in LEGEND:
        for part in textwrap.wrap(line, max(width, 40)):
            yield part, "dim"


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, the four figures at the end and the size to the right."""
    right = {1, 6, 7, 8}
    padded = (
        text.rjust(width) if i in right else text.ljust(width)
        for i, (text, width) in enumerate(zip(texts, widths, strict=True))
    )
    return " ".join(padded).rstrip()
