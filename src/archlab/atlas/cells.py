"""A row as short texts, for the terminal's table and the page's."""

from archlab.atlas import words
from archlab.atlas.rows import Row
from archlab.pricing import units

HEADINGS = ("model", "size", "norm", "position", "MLP", "h/kv", "ff/d", "d/L", "vocab")
FIELDS = frozenset(
    (
        "preset",
        "name",
        "family",
        "size",
        "norm",
        "placement",
        "position",
        "activation",
        "heads",
        "n_heads",
        "n_kv_heads",
    )
) | {"d_ff_over_d", "d_over_layers", "vocab_size"}
"""Fields of a row that stand under these headings."""
MORE = ("head", "h/d", "active", "context", "lang", "drop", "decay")
"""Where there is room."""
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
"""What follows a model's name, by certainty."""

_SHORT = {"LayerNorm": "LN", "RMSNorm": "RMS"}


def cells(row: Row) -> tuple[str, ...]:
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


def more(row: Row) -> tuple[str, ...]:
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


def active(row: Row) -> str:
    """Active parameters of a mixture; empty where they are all, or not known."""
    number = row.active_parameters or row.about.published_active
    return count(number) if row.n_experts and number else ""


def _known(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def norm(row: Row) -> str:
    """`pre RMS`."""
    return f"{row.placement} {_SHORT.get(row.norm, row.norm)}"


def heads(row: Row) -> str:
    """`32/8`, `128/MLA`."""
    return words.NOTHING if row.n_heads is None else f"{row.n_heads}/{row.n_kv_heads or row.heads}"


def remarks(row: Row) -> list[str]:
    """Remarks on a model: the part that is shown if it cannot be built, and why; then its tricks."""
    return [*([f"facts only, {row.about.part}"] if row.about.part else []), *row.tricks]


def count(number: int | None) -> str:
    """Three digits: 8.03B, 128K; a question mark where it is not known."""
    return "?" if number is None else units.count(number)


def _doubt(row: Row, text: str, *fields: str) -> str:
    return f"{text}?" if text and row.about.doubts(*fields) else text
