"""Pictures of the shapes of published models against their size, the unusual ones named."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from archlab.atlas.models import AtlasRow
from archlab.atlas.table import count
from archlab.report.atlas import Shape, ends, upright

KINDS = ("plain MLP", "gated MLP", "mixture of experts", "no MLP")
"""The colours, in order."""

_WIDTH, _HEIGHT = 430, 300
"""Pixels; the width is that on a usual page, by which names are placed."""
_LETTER, _LINE = 6.2, 13
"""Pixels of a name's letter and line."""
_GAP = 8
"""Pixels between a dot and its name."""
_UNUSUAL = 1.4
"""Factor beyond the rule of thumb from which on a model is named."""
_SIZES = (1e8, 1e9, 1e10, 1e11, 1e12)
_SIZE = "datum.value >= 1e12 ? '1T' : datum.value >= 1e9 ? datum.value / 1e9 + 'B' : datum.value / 1e6 + 'M'"
"""A Vega expression: 1B for 1e9."""

Box = tuple[float, float, float, float]
"""Left, right, upper and lower end in pixels."""


def by_size(rows: Sequence[AtlasRow], drawn: Shape) -> alt.LayerChart:
    """A dot per model of known size on two logarithmic axes, and lines at the rule of thumb."""
    dots = [
        {"model": row.about.name, "size": row.size, "value": value, "kind": _kind(row),
         "text": f"{count(row.size)}, {drawn.title} {drawn.format(value)}"}
        for row in rows
        if row.size is not None and (value := drawn.of(row)) is not None
    ]  # fmt: skip
    domain = [min(dot["size"] for dot in dots) / 1.3, max(dot["size"] for dot in dots) * 1.3]
    axis = alt.Axis(title=None, values=list(_SIZES), grid=False, labelExpr=_SIZE)
    x = alt.X("size:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=axis)
    y = upright(drawn, [dot["value"] for dot in dots])
    colour = alt.Color("kind:N", scale=alt.Scale(domain=list(KINDS), range="category"), legend=None)
    points = alt.Chart(alt.InlineData(values=dots)).mark_point(filled=True, size=46, opacity=0.7)
    guides = alt.Chart(alt.InlineData(values=[{"value": value} for value in drawn.guides]))
    layers = [
        guides.mark_rule(strokeDash=[5, 4], style="notch").encode(y=y),
        points.encode(x=x, y=y, color=colour, tooltip=[alt.Tooltip("model:N"), alt.Tooltip("text:N")]),
    ]
    sides = list(_named(dots, drawn, domain))
    for direction in (1, -1):
        here = alt.Chart(alt.InlineData(values=[dot for dot, side in sides if side == direction]))
        align = "left" if direction > 0 else "right"
        text = here.mark_text(align=align, dx=direction * _GAP, fontSize=11, baseline="middle")
        layers.append(text.encode(x=x, y=y, text="model:N"))
    return alt.LayerChart(layer=layers, width="container", height=_HEIGHT, description=f"{drawn.title} by size")


def _kind(row: AtlasRow) -> str:
    if row.gated is None:
        return KINDS[3]
    return KINDS[2] if row.n_experts else KINDS[row.gated]


def _named(
    dots: Sequence[dict[str, Any]], drawn: Shape, domain: Sequence[float]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Unusual models, the most unusual first, with the side where their name covers no dot and no other name."""
    if not drawn.guides:
        return
    low, high = drawn.guides[0], drawn.guides[-1]
    beyond = {dot["model"]: max(dot["value"] / high, low / dot["value"]) for dot in dots}
    places = {dot["model"]: _place(dot, dots, drawn, domain) for dot in dots}
    taken = list[Box]()
    for dot in sorted(dots, key=lambda dot: -beyond[dot["model"]]):
        if beyond[dot["model"]] < _UNUSUAL:
            return
        x, y = places[dot["model"]]
        others = [_around(*place, 4, 4) for model, place in places.items() if model != dot["model"]]
        half = _LETTER * len(dot["model"]) / 2
        for side in (1, -1):
            box = _around(x + side * (_GAP + half), y, half, _LINE / 2)
            if box[0] >= 0 and box[1] <= _WIDTH and not any(_meet(box, other) for other in (*taken, *others)):
                taken.append(box)
                yield dot, side
                break


def _place(
    dot: dict[str, Any], dots: Sequence[dict[str, Any]], drawn: Shape, domain: Sequence[float]
) -> tuple[float, float]:
    """In pixels."""
    low, high = ends(drawn, [other["value"] for other in dots])
    x = math.log(dot["size"] / domain[0]) / math.log(domain[1] / domain[0])
    return _WIDTH * x, _HEIGHT * (1 - math.log(dot["value"] / low) / math.log(high / low))


def _around(x: float, y: float, half_width: float, half_height: float) -> Box:
    return x - half_width, x + half_width, y - half_height, y + half_height


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
