"""Parts that all charts share: inline data, colors, dashes, tooltips and layers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

ChartRow = dict[str, Any]
"""Datum of a chart: field -> value."""

Width = int | Literal["container"]
"""Width of a chart in pixels, or `container`: as wide as its place on the page."""

_PHONE = 560
"""Charts narrower than this many pixels are treated as charts on a phone."""

_DASHES = ((1, 0), (8, 3), (2, 3), (10, 3, 2, 3), (14, 4))
"""Dash patterns of lines in turn; the first line is solid. There are five patterns and 8 colors, so that two lines of
the same color have different dashes."""

DASHED = [5, 4]
"""Dashes of lines that are not data: rules of thumb, trends, limits."""

HEIGHT = 240
"""Height in pixels of a chart beside others."""

ON_A_PHONE = f"containerSize()[0] < {_PHONE}"
"""Vega expression that is true on a phone, for charts that are as wide as their place."""


def chart_of(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart without marks that holds the rows itself."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def color(names: Sequence[str], field: str = "arm") -> alt.Color:
    """Return an encoding that gives each name its color from the page's theme. `field` holds the name."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names), range="category"), legend=None)


def dash_turns(n: int) -> list[list[int]]:
    """Return the dashes of `n` lines: lengths of strokes and gaps in pixels."""
    return [list(_DASHES[i % len(_DASHES)]) for i in range(n)]


def dashes(names: Sequence[str], field: str = "arm") -> alt.StrokeDash:
    """Return an encoding that gives each named line its dashes. `field` holds the name."""
    return alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=list(names), range=dash_turns(len(names))), legend=None)


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """Return a tooltip that shows these fields unchanged."""
    return [alt.Tooltip(f"{field}:N") for field in fields]


def layered(
    layers: Sequence[alt.Chart], description: str, height: int = HEIGHT, width: Width = "container"
) -> alt.LayerChart:
    """Return the layers as one chart. The description is for readers who cannot see it."""
    return alt.LayerChart(layer=list(layers), width=width, height=height, description=description)
