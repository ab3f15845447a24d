"""What the charts of a study share: data that stands in the chart itself, tooltips, layers."""

from collections.abc import Sequence
from typing import Literal

import altair as alt

from archlab.report.rows import Row

Width = int | Literal["container"]
"""Pixels, or as wide as the place on the page."""

_PHONE = 560
"""A page on which a picture has fewer pixels than these has room for less."""

ON_A_PHONE = f"containerSize()[0] < {_PHONE}"
"""A Vega expression, for pictures that are as wide as their place."""


def data(rows: Sequence[Row]) -> alt.InlineData:
    """The rows, inside the chart."""
    return alt.InlineData(values=list(rows))


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """These fields as they are."""
    return [alt.Tooltip(f"{field}:N") for field in fields]


def layered(layers: Sequence[alt.Chart], width: Width, height: int, description: str) -> alt.LayerChart:
    """The layers as one chart; the description is for those who cannot see it."""
    return alt.LayerChart(layer=list(layers), width=width, height=height, description=description)
