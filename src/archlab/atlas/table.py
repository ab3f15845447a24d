"""The atlas as a table: rows as short texts, for the terminal's table and the page's, and lines of the terminal."""

import textwrap
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import groupby
from typing import NamedTuple

from archlab.atlas import words
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import value_of
from archlab.pricing import units

HEADINGS = ("model", "size", "norm", "position", "MLP", "h/kv", "ff/d", "d/L", "vocab")
FIELDS = frozenset({
    "preset", "name", "family", "size", "norm", "placement", "position", "activation", "heads", "n_heads", "n_kv_heads",
    "d_ff_over_d", "d_over_layers", "vocab_size",
})  # fmt: skip
"""Fields of a row that stand under these headings."""
MORE = ("head", "h/d", "active", "context", "lang", "drop", "decay")
"""Headings of further columns, for wide tables."""
MORE_FIELDS = {"head_dim", "heads_over_d", "active_parameters", "context", "languages", "dropout", "weight_decay"}
FIGURES = ("size", "ff/d", "d/L", "vocab", *MORE)
"""Headings of numbers."""

LEGEND = (
    "h/kv: query and KV heads, MLA: all from one latent; d/L: d_model / layers;",
    "ff/d: d_ff / d_model, of a mixture that of all experts that a token meets.",
)
LEGEND_OF_MORE = (
    "head: width of a head; h/d: all query heads together / d_model; active: parameters per token;",
    "context: tokens; Ki = 1,024, Mi = 1,048,576; lang: languages of the text;",
    "drop, decay: dropout and weight decay in pre-training.",
)
LEGEND_OF_MARKS = (
    "* from secondary sources; ~ from memory; ? this one unverified, or a stand-in.",
    "facts only: cannot be built here; `archlab show MODEL` shows any other in full.",
)

MARKS = {"verified": "", "secondary": " *", "from memory": " ~"}
"""Mark after a model's name, by certainty."""

_SHORT = {"LayerNorm": "LN", "RMSNorm": "RMS"}


def cells(row: AtlasRow) -> tuple[str, ...]:
    """One text per heading."""
    return (
        row.preset + MARKS[row.about.certainty],
        count(row.size),
        _doubt(row, norm(row), "norm.kind", "norm.placement"),
        _doubt(row, row.position, "position.kind"),
        row.activation,
        heads(row),
        words.NOTHING if row.d_ff_over_d is None else f"{row.d_ff_over_d:.3g}",
        f"{row.d_over_layers:.0f}",
        count(row.vocab_size),
    )


def more(row: AtlasRow) -> tuple[str, ...]:
    """One text per heading of MORE; empty where it is not known."""
    about = row.about
    return (
        _known(row.head_dim),
        _known(row.heads_over_d),
        active(row),
        "" if row.context is None else units.length(row.context),
        _doubt(row, _known(about.languages), "about.languages"),
        _doubt(row, _known(about.dropout), "about.dropout"),
        _doubt(row, _known(about.weight_decay), "about.weight_decay"),
    )


def active(row: AtlasRow) -> str:
    """Active parameters of a mixture; empty where they are all, or not known."""
    number = row.active_parameters or row.about.published_active
    return count(number) if row.n_experts and number else ""


def _known(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def norm(row: AtlasRow) -> str:
    """`pre RMS`."""
    return f"{row.placement} {_SHORT.get(row.norm, row.norm)}"


def heads(row: AtlasRow) -> str:
    """`32/8`, `128/MLA`."""
    return words.NOTHING if row.n_heads is None else f"{row.n_heads}/{row.n_kv_heads or row.heads}"


def remarks(row: AtlasRow) -> list[str]:
    """Remarks on a model: the part that is shown if it cannot be built, and why; then its tricks."""
    return [*([f"facts only, {row.about.part}"] if row.about.part else []), *row.tricks]


def count(number: int | None) -> str:
    """Three digits: 8.03B, 128K; a question mark where it is not known."""
    return "?" if number is None else units.count(number)


def _doubt(row: AtlasRow, text: str, *fields: str) -> str:
    return f"{text}?" if text and row.about.doubts(*fields) else text


# --- lines of the terminal --------------------------------------------------------------------------------------------

_INDENT = "    "
_BESIDE = 40
"""Columns to the right of the figures from which on the remarks stand there."""

Line = tuple[str, str]
"""A text, and its style for rich."""


class _Form(NamedTuple):
    """What stands in columns, what in words, and what explains it."""

    headings: tuple[str, ...]
    cells: Callable[[AtlasRow], tuple[str, ...]]
    remarks: Callable[[AtlasRow], list[str]]
    legend: tuple[str, ...]
    fields: Set[str]
    """Of a row, that stand in columns."""


_NARROW = _Form(
    HEADINGS,
    cells,
    lambda row: [*(f"{number} active" for number in (active(row),) if number), *remarks(row)],
    (*LEGEND, *LEGEND_OF_MARKS),
    FIELDS,
)
_WIDE = _Form(
    (*HEADINGS, *MORE),
    lambda row: (*cells(row), *more(row)),
    remarks,
    (*LEGEND, *LEGEND_OF_MORE, *LEGEND_OF_MARKS),
    FIELDS | MORE_FIELDS,
)


def evolution(
    rows: Sequence[AtlasRow], width: int = 100, asked: Sequence[str] = (), *, by_year: bool = True
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


def _widths(form: _Form, rows: Sequence[AtlasRow]) -> list[int]:
    shown = [form.cells(row) for row in rows]
    return [max(map(len, column)) for column in zip(form.headings, *shown, strict=True)]


def _value(row: AtlasRow, field: str) -> str:
    """`weight_decay 0.1`."""
    value = value_of(row, field)
    return f"{field} {value:,.4g}" if isinstance(value, float) else f"{field} {'unknown' if value is None else value}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of that width; on a terminal that is narrower than any table, of 40."""
    return textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, figures to the right."""
    headings = (*HEADINGS, *MORE)
    padded = (
        text.rjust(width) if heading in FIGURES else text.ljust(width)
        for text, width, heading in zip(texts, widths, headings, strict=False)
    )
    return " ".join(padded).rstrip()
