"""Chart of the atlas: one point per model, over any two fields.

All places are percentages of the width and the height of the chart, so that it fits every screen and its text keeps
its size.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from archlab.atlas.adoption import CHOICES
from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import FIELDS, value_of
from archlab.atlas.words import NOTHING
from archlab.errors import UserError
from archlab.pricing.units import count, length
from archlab.report.charts.axes import logarithmic, padded, plain

AXES = tuple(field for field in FIELDS if field not in ("name", "preset", "family"))
"""Fields that an axis can show, besides those of the config."""

NUMBERS: Mapping[str, str] = {
    "size": "Parameters",
    "active_parameters": "Active parameters",
    "d_model": "Width (d_model)",
    "n_layers": "Layers",
    "d_ff": "Hidden width (d_ff)",
    "n_heads": "Query heads",
    "n_kv_heads": "KV heads",
    "head_dim": "Head dimension",
    "n_experts": "Experts per layer",
    "n_active_experts": "Active experts",
    "vocab_size": "Vocabulary",
    "context": "Context in tokens",
    "d_ff_over_d": "d_ff / d_model",
    "d_over_layers": "d_model / layers",
    "heads_over_d": "heads · head_dim / d_model",
    "dropout": "Dropout",
    "weight_decay": "Weight decay",
    "languages": "Languages of the text",
}
"""Label of each number by its field in the atlas."""

_LABELS = {
    **{choice.field: choice.title for choice in CHOICES},
    **NUMBERS,
    "year": "Year",
    "certainty": "Certainty",
    "buildable": "Can be built",
    "parameters": "Parameters of the config",
}

_WIDE = 20
"""An axis is logarithmic if the largest value is more than this many times the smallest one."""

_SPREAD = 0.76
"""Fraction of the band of a word on an axis over which the points with this word are spread."""

_MOST_TICKS = 6

_LETTERS_PER_LINE, _MOST_LINES = 30, 3
"""Number of letters in a line of labels on a phone, and the maximum number of lines."""


class Axis(NamedTuple):
    """Axis of the chart."""

    field: str
    ticks: list[tuple[float, str]]
    """Place in percent, and label, of each tick."""
    is_logarithmic: bool
    place: Callable[[Value], float]
    """Function that maps a value to its place, from 0 to 1."""
    band: float
    """Width of the band of each word, as a fraction of the axis. 0 for numbers."""

    @property
    def n_lines(self) -> int:
        """Number of lines on which the labels fit on a phone."""
        longest = max(len(label) for _, label in self.ticks)
        return min(_MOST_LINES, math.ceil(longest * len(self.ticks) / _LETTERS_PER_LINE))


def label(field: str) -> str:
    """Return the label of a field on an axis. Fields of the config keep their names."""
    return _LABELS.get(field, field)


class Place(NamedTuple):
    """Place of a model in percent: from the left, and from the top."""

    left: float
    top: float


def axis_of(field: str, values: Sequence[Value]) -> Axis:
    """Return an axis that covers all these values of a field. Words and years have bands of equal width."""
    known = {value for value in values if value is not None}
    if not known:
        raise UserError(f"{field}: no model has a value")
    numbers = [float(value) for value in known if isinstance(value, int | float)]
    if field == "year":
        return _of_words(field, [str(year) for year in range(int(min(numbers)), int(max(numbers)) + 1)])
    if known <= {True, False} or len(numbers) < len(known):
        return _of_words(field, sorted({value_text(field, value) for value in known}))
    low, high = min(numbers), max(numbers)
    is_logarithmic = low > 0 and high / low > _WIDE
    ticks = (logarithmic if is_logarithmic else plain)(low, high, _MOST_TICKS)
    scale = math.log if is_logarithmic else float
    start, end = map(scale, padded(low, high, is_logarithmic))

    def place(value: Value) -> float:
        return (scale(float(value or 0)) - start) / (end - start)

    return Axis(field, [(100 * place(tick), value_text(field, tick)) for tick in ticks], is_logarithmic, place, 0)


def _of_words(field: str, words: Sequence[str]) -> Axis:
    band = 1 / len(words)
    middles = {word: (i + 0.5) * band for i, word in enumerate(words)}
    ticks = [(100 * middle, word) for word, middle in middles.items()]
    return Axis(field, ticks, False, lambda value: middles[value_text(field, value)], band)


def value_text(field: str, value: Value) -> str:
    """Return a value as text. Large numbers have three significant digits, as in `8.03B`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return {None: "unknown", NOTHING: "none"}.get(value) or str(value)
    if field == "year":
        return f"{value:.0f}"
    if field == "context" and value == int(value):
        return length(int(value))
    return count(value) if value >= 1000 else f"{value:.3g}"


def places(rows: Sequence[AtlasRow], x: Axis, y: Axis) -> dict[str, Place]:
    """Return the place of each model for which both fields are known, by name of its preset.

    Models with the same word are spread over its band, in the order of `rows`.
    """
    groups: defaultdict[tuple[Value, Value], list[AtlasRow]] = defaultdict(list)
    for row in rows:
        values = value_of(row, x.field), value_of(row, y.field)
        if None not in values:
            groups[values[0] if x.band else None, values[1] if y.band else None].append(row)
    return {
        row.preset: Place(
            100 * (x.place(value_of(row, x.field)) + x.band * across),
            100 * (1 - y.place(value_of(row, y.field)) + y.band * down),
        )
        for group in groups.values()
        for row, (across, down) in zip(group, _spread(len(group), is_grid=bool(x.band and y.band)), strict=True)
    }


def _spread(n: int, *, is_grid: bool) -> list[tuple[float, float]]:
    """Return `n` places around the middle of a band: in a grid, or each with the same distance in both directions."""
    if not is_grid:
        offsets = [_SPREAD * ((i + 0.5) / n - 0.5) for i in range(n)]
        return [(offset, offset) for offset in offsets]
    side = math.ceil(math.sqrt(n))
    middle = [_SPREAD * ((i + 0.5) / side - 0.5) for i in range(side)]
    return [(middle[i % side], middle[i // side]) for i in range(n)]


def guides(axis: Axis, values: Mapping[str, Sequence[float]]) -> list[tuple[float, str]]:
    """Return the places, in percent, and the values of the rules of thumb for the field of an axis."""
    found = [(100 * axis.place(value), f"{value:.3g}") for value in values.get(axis.field, ())]
    return [(place, text) for place, text in found if 0 <= place <= 100]
