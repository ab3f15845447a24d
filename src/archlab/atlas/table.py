"""Format the atlas as a table: cells for the terminal and the HTML page, and lines for the terminal."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import NamedTuple

from archlab.atlas import words
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import value_of
from archlab.config.about import About
from archlab.pricing import units

HEADINGS = ("model", "size", "norm", "position", "MLP", "h/kv", "ff/d", "d/L", "vocab")
FIELDS = frozenset({
    "preset", "name", "family", "size", "norm", "placement", "position", "activation", "heads", "n_heads", "n_kv_heads",
    "d_ff_over_d", "d_over_layers", "vocab_size",
})  # fmt: skip
"""Row fields that are shown in the columns of HEADINGS."""
MORE = ("head", "h/d", "active", "context", "lang", "drop", "decay")
"""Headings of additional columns in wide tables."""
MORE_FIELDS = {"head_dim", "heads_over_d", "active_parameters", "context", "languages", "dropout", "weight_decay"}
FIGURES = ("size", "ff/d", "d/L", "vocab", *MORE)
"""Headings of numeric columns, which are right-aligned."""

SORTED_BY = {
    "model": "name", "year": "year", "size": "size", "norm": "norm", "position": "position", "MLP": "activation",
    "h/kv": "n_heads", "ff/d": "d_ff_over_d", "d/L": "d_over_layers", "vocab": "vocab_size", "head": "head_dim",
    "h/d": "heads_over_d", "active": "active_parameters", "context": "context", "lang": "languages", "drop": "dropout",
    "decay": "weight_decay",
}  # fmt: skip
"""Field by which each column is sorted, by its heading."""

LEGEND = (
    "h/kv: query and KV heads; MLA: all heads share one latent; d/L: d_model / layers;",
    "ff/d: d_ff / d_model; for a mixture, all experts of a token together.",
)
LEGEND_OF_MORE = (
    "head: width of a head; h/d: width of all query heads / d_model; active: parameters per token;",
    "context: tokens; Ki = 1,024, Mi = 1,048,576; lang: languages of the text;",
    "drop, decay: dropout and weight decay in pre-training.",
)
LEGEND_OF_MARKS = (
    "* from secondary sources; ~ from memory; ? value unverified, or a placeholder.",
    "facts only: archlab cannot build the model; `archlab show MODEL` shows other models.",
)

MARKS = {"verified": "", "secondary": " *", "from memory": " ~"}
"""Mark after a model's name for each level of certainty."""

CERTAINTIES = {
    "verified": "from a published config or the text of the paper",
    "secondary": "from transcriptions by others",
    "from memory": "not checked against a source",
}
"""Origin of the config of a model for each level of certainty."""

_SHORT = {"LayerNorm": "LN", "RMSNorm": "RMS"}


def cells(row: AtlasRow) -> tuple[str, ...]:
    """Return the text of one cell for each of HEADINGS."""
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
    """Return the text of one cell for each heading in MORE. The text is empty if the value is unknown."""
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
    """Return the number of active parameters of a mixture.

    The text is empty if all parameters are active or the number is unknown.
    """
    number = row.active_parameters or row.about.published_active
    return count(number) if row.n_experts and number else ""


def _known(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def norm(row: AtlasRow) -> str:
    """Return the placement and the kind of the norms, for example `pre RMS`."""
    return f"{'mixed' if _mixed(row) else row.placement} {_SHORT.get(row.norm, row.norm)}"


def _mixed(row: AtlasRow) -> bool:
    """Return whether the layers of a model place their norms differently."""
    return "+" in row.placement


def heads(row: AtlasRow) -> str:
    """Return the numbers of query and KV heads, for example `32/8`, or `128/MLA` for latent attention."""
    return words.NOTHING if row.n_heads is None else f"{row.n_heads}/{row.n_kv_heads or row.heads}"


def remarks(row: AtlasRow) -> list[str]:
    """Return remarks on a model.

    If archlab cannot build the model, the first remark says which part of it the table shows. Unusual features follow.
    """
    placements = [f"norms {row.placement.replace('+', ' and ')}"] if _mixed(row) else []
    return [*([f"facts only, {row.about.part}"] if row.about.part else []), *placements, *row.tricks]


def count(number: int | None) -> str:
    """Format a number with three significant digits (8.03B, 128K), or as a question mark if it is unknown."""
    return "?" if number is None else units.count(number)


def _doubt(row: AtlasRow, text: str, *fields: str) -> str:
    return f"{text}?" if text and row.about.doubts(*fields) else text


def without_architecture(models: Mapping[str, About]) -> str:
    """Return a sentence about the models whose architecture is not published, or an empty text if there are none."""
    names = ", ".join(f"{about.name} ({about.year})" for about in models.values())
    return f"Not in the table, because the architecture is not published: {names}." if names else ""


# --- lines in the terminal --------------------------------------------------------------------------------------------

_INDENT = "    "
_BESIDE = 40

Line = tuple[str, str]
"""Line of text and its Rich style."""


class _Form(NamedTuple):
    """Layout of a table: its columns and legend."""

    headings: tuple[str, ...]
    cells: Callable[[AtlasRow], tuple[str, ...]]
    legend: tuple[str, ...]
    fields: Set[str]
    """Row fields that have a column."""


_NARROW = _Form(HEADINGS, cells, (*LEGEND, *LEGEND_OF_MARKS), FIELDS)
_WIDE = _Form(
    (*HEADINGS, *MORE),
    lambda row: (*cells(row), *more(row)),
    (*LEGEND, *LEGEND_OF_MORE, *LEGEND_OF_MARKS),
    FIELDS | MORE_FIELDS,
)


def evolution(
    rows: Sequence[AtlasRow], width: int = 100, extra_fields: Sequence[str] = (), *, by_year: bool = True
) -> Iterator[Line]:
    """Yield the lines of the table: the values of each model, and remarks on it.

    In a wide terminal, the remarks are to the right of the values, otherwise below them. The remarks begin with the
    values of those `extra_fields` that have no column.
    """
    form, widths = _WIDE, _widths(_WIDE, rows)
    if sum(widths) + len(widths) + _BESIDE >= width:
        form, widths = _NARROW, _widths(_NARROW, rows)
    extra_fields = [field for field in extra_fields if field not in form.fields and not (by_year and field == "year")]
    indent = " " * (sum(widths) + len(widths) + 1)
    is_wide = width - len(indent) >= _BESIDE
    yield _line(form.headings, widths), "bold"
    for year, group in groupby(rows, key=lambda row: row.about.year if by_year else None):
        if year is not None:
            yield str(year), "bold cyan"
        for row in group:
            figures = _line(form.cells(row), widths)
            special = "; ".join(_beside(row, form, extra_fields))
            if is_wide:
                lines = _wrapped(special, width, indent) or [indent]
                yield (figures.ljust(len(indent)) + lines[0].removeprefix(indent)).rstrip(), ""
                yield from ((line, "") for line in lines[1:])
            else:
                yield figures, ""
                yield from ((line, "dim") for line in _wrapped(special, width, _INDENT))
    for line in form.legend:
        yield from ((part, "dim") for part in _wrapped(line, width, ""))


def _beside(row: AtlasRow, form: _Form, extra_fields: Sequence[str]) -> list[str]:
    """Return the values of `extra_fields`, and then the remarks that say something else than a column.

    A remark that says the same as a value takes its place, possibly with the question mark of an unverified value.
    """
    number = "" if "active" in form.headings else active(row)
    texts = [*([f"{number} active"] if number else []), *remarks(row)]
    remark_of = {text.removesuffix("?"): text for text in texts}

    def said(field: str) -> str:
        value = _value(row, field)
        return remark_of.get(value.removesuffix(" True"), value)

    in_columns = set(map(said, form.fields))
    return [text for text in dict.fromkeys([*map(said, extra_fields), *texts]) if text not in in_columns]


def _widths(form: _Form, rows: Sequence[AtlasRow]) -> list[int]:
    shown = [form.cells(row) for row in rows]
    return [max(map(len, column)) for column in zip(form.headings, *shown, strict=True)]


def _value(row: AtlasRow, field: str) -> str:
    value = value_of(row, field)
    return f"{field} {value:,.4g}" if isinstance(value, float) else f"{field} {'unknown' if value is None else value}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    headings = (*HEADINGS, *MORE)
    padded = (
        text.rjust(width) if heading in FIGURES else text.ljust(width)
        for text, width, heading in zip(texts, widths, headings, strict=False)
    )
    return " ".join(padded).rstrip()
