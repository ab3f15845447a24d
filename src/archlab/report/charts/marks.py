"""Parts that all charts share: data that stands in the chart itself, colors, dashes, tooltips, layers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

ChartRow = dict[str, Any]
"""A datum of a chart, by field."""

Width = int | Literal["container"]
"""Pixels, or as wide as the place on the page."""

_PHONE = 560
"""A page on which a picture has fewer pixels than these has room for less."""

_DASHES = ((1, 0), (8, 3), (2, 3), (10, 3, 2, 3), (14, 4))
"""Dash patterns of the lines in turn; the first line has none. There are five, so that two lines of the same of 8
colors differ in their dashes."""

DASHED = [5, 4]
"""Dashes of lines that are no data: rules of thumb, trends, limits."""

HEIGHT = 240
"""Pixels of a chart beside others."""

ON_A_PHONE = f"containerSize()[0] < {_PHONE}"
"""A Vega expression, for pictures that are as wide as their place."""


def chart_of(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart without marks that holds the rows itself."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def color(named: Sequence[str], field: str = "arm") -> alt.Color:
    """Return an encoding that gives each of the `named` its color of the page's theme; `field` holds the name."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(named), range="category"), legend=None)


def dash_turns(n: int) -> list[list[int]]:
    """Return the dashes of `n` lines: lengths of strokes and gaps in pixels."""
    return [list(_DASHES[i % len(_DASHES)]) for i in range(n)]


def dashes(named: Sequence[str], field: str = "arm") -> alt.StrokeDash:
    """Return an encoding that gives each of the `named` lines its dashes; `field` holds a line's name."""
    return alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=list(named), range=dash_turns(len(named))), legend=None)


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """These fields as they are."""
    return [alt.Tooltip(f"{field}:N") for field in fields]


def layered(
    layers: Sequence[alt.Chart], description: str, height: int = HEIGHT, width: Width = "container"
) -> alt.LayerChart:
    """The layers as one chart; the description is for those who cannot see it."""
    return alt.LayerChart(layer=list(layers), width=width, height=height, description=description)
