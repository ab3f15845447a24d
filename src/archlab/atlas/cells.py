"""A row as short texts, for the terminal's table and the page's."""

from archlab.atlas import words
from archlab.atlas.rows import Row
from archlab.cost import units

HEADINGS = ("model", "size", "norm", "position", "MLP", "h/kv", "ff/d", "d/L", "vocab")

LEGEND = (
    "h/kv: query and KV heads, MLA: all from one latent; d/L: d_model / layers;",
    "ff/d: d_ff / d_model, of a mixture that of all experts that a token meets.",
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


def norm(row: Row) -> str:
    """`pre RMS`."""
    return f"{row.placement} {_SHORT.get(row.norm, row.norm)}"


def heads(row: Row) -> str:
    """`32/8`, `128/MLA`."""
    return words.NOTHING if row.n_heads is None else f"{row.n_heads}/{row.n_kv_heads or row.heads}"


def remarks(row: Row) -> list[str]:
    """Active parameters of a mixture, tricks, and why it cannot be built."""
    active = row.active_parameters or row.about.published_active
    return [
        *([f"{count(active)} active"] if row.n_experts and active else []),
        *row.tricks,
        *([f"facts only: {row.about.cannot_build}"] if row.about.cannot_build else []),
    ]


def count(number: int | None) -> str:
    """Three digits: 8.03B, 128K; a question mark where it is not known."""
    return "?" if number is None else units.count(number)


def _doubt(row: Row, text: str, *fields: str) -> str:
    return f"{text}?" if row.about.doubts(*fields) else text
