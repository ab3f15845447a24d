"""Building blocks that all charts share: inline data, colors, dashes, tooltips and layers."""

from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, Literal, cast

import altair as alt

ChartRow = dict[str, Any]
"""One row of a chart's data, which maps fields to values."""

Width = int | Literal["container"]
"""Width of a chart in pixels, in a picture, or `container` for the width of the element of a page that holds the
chart."""

_PHONE = 560
"""Width in pixels below which a chart is laid out as on a phone."""

_DASHES = ((1, 0), (8, 3), (2, 3), (10, 3, 2, 3), (14, 4))
"""Dash patterns, which are used by one line after another. The first line is solid. With five patterns and 8 colors,
two lines of the same color have different dashes."""

DASHED = [5, 4]
"""Dash pattern of lines that are not data, such as rules of thumb, trends and limits."""

HEIGHT = 240
"""Height in pixels of charts that stand side by side."""

_TOOLTIP_TITLES = {
    "arm": "name",
    "text": "value",
    "against": "reference",
    "detectable": "smallest detectable difference",
}
"""Titles of data fields in tooltips. A field that is not listed is shown under its own name."""

ON_A_PHONE = f"containerSize()[0] < {_PHONE}"
"""Vega expression that is true on a phone. It is for charts whose width is that of their container."""


def chart_of(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart without marks whose data are these rows, stored inline."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def color(names: Sequence[str], field: str = "arm") -> alt.Color:
    """Return an encoding that gives each name a color from the page's theme. `field` is the name of the field that
    holds the names."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names), range="category"), legend=None)


def dash_turns(n: int) -> list[list[int]]:
    """Return the dash patterns of `n` lines. A pattern lists the lengths of its strokes and gaps in pixels."""
    return [list(_DASHES[i % len(_DASHES)]) for i in range(n)]


def dashes(names: Sequence[str], field: str = "arm") -> alt.StrokeDash:
    """Return an encoding that gives each named line its dash pattern. `field` is the name of the field that holds the
    names."""
    return alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=list(names), range=dash_turns(len(names))), legend=None)


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """Return a tooltip that shows the values of these fields unchanged."""
    return [alt.Tooltip(f"{field}:N", title=_TOOLTIP_TITLES.get(field, field)) for field in fields]


def crosshair(points: alt.Chart, x: str, y: alt.Y, name: str) -> list[alt.Chart]:
    """Return points that the pointer finds from anywhere in the chart, and lines through the nearest of them.

    `x` and `name` are the fields that distinguish the points: the horizontal position and the name of the line. The
    tooltip of `points` is shown for the nearest point.
    """
    pointed = alt.selection_point(
        name="pointed", fields=[x, name], nearest=True, on="pointermove", clear="pointerout", empty=False
    )
    place = points.encode(y=y, tooltip=_tooltip_of_nearest(points))
    near = place.transform_filter(pointed).encode(tooltip=alt.Tooltip(value=None))
    # The lines have no description for screen readers, because without a pointer there are none.
    lines = near.mark_rule(style="notch", strokeDash=[2, 3], clip=True, aria=False)
    return [
        lines.encode(y=alt.Y(), opacity=alt.value(1)),
        lines.encode(x=alt.X(), opacity=alt.value(1)),
        near.mark_point(size=60, filled=True, clip=True, aria=False),
        place.mark_point(size=90, opacity=0, filled=True, clip=True).encode(opacity=alt.value(0)).add_params(pointed),
    ]


def _tooltip_of_nearest(points: alt.Chart) -> Any:
    """Return the tooltip of a chart as an expression. Vega-Lite shows names as `undefined` in tooltips of the nearest
    point, because it looks for them in the area around the point."""
    shown = [cast(dict[str, Any], tooltip.to_dict()) for tooltip in cast(list[alt.Tooltip], points.encoding.tooltip)]
    values = []
    for encoding in shown:
        value = f"(datum.datum || datum)[{dumps(encoding['field'])}]"
        values.append(f"format({value}, {dumps(encoding['format'])})" if "format" in encoding else value)
    cells = (f"{dumps(encoding['title'])}: {value}" for encoding, value in zip(shown, values, strict=True))
    return alt.value(alt.ExprRef(f"{{{', '.join(cells)}}}"))


def layered(
    layers: Sequence[alt.Chart], description: str, height: int = HEIGHT, width: Width = "container"
) -> alt.LayerChart:
    """Return the layers as one chart. The description is for readers who cannot see the chart."""
    return alt.LayerChart(layer=list(layers), width=width, height=height, description=description)
