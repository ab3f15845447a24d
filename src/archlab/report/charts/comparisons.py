"""What pictures with a row per comparison are made of: the row's label and numbers above, its marks below.

Labels stand inside the picture, so that long names cost no width on a phone. Where a label and its row's numbers do not
fit side by side, labels are broken and rows are higher. A row has `arm`, its label; `text`, its numbers; `value`, `low`
and `high`; and where it is drawn (`place_on_axis`).
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from archlab.report.charts.marks import ChartRow, Width, chart_of

ROW = 46
_LABEL_UP, MARK_DOWN = -10, 9
"""Pixels: an arm's row, its label above the middle, its marks below."""

_LETTER = 7
"""Pixels that a letter takes, at most."""

_LINE = 16
"""Pixels from one line of a label to the next."""

_BROKEN = 44
"""Letters in a line of a label that is broken; a phone has room for them."""


@dataclass(frozen=True)
class XAxis:
    """`x("low")`: a field on the one horizontal axis that all layers of a chart share."""

    low: float
    high: float
    scale: alt.Scale
    axis: alt.Axis

    def __call__(self, field: str) -> alt.X:
        """The field, on this axis."""
        return alt.X(f"{field}:Q", scale=self.scale, axis=self.axis)


def by_row(rows: Sequence[ChartRow], order: Sequence[ChartRow] | None = None) -> alt.Chart:
    """A chart with one row of its own per label, in their order."""
    named = [row["arm"] for row in order or rows]
    return chart_of(rows).encode(y=alt.Y("arm:N", sort=named, axis=None, scale=alt.Scale(domain=named)))


def intervals(base: alt.Chart, x: XAxis) -> list[alt.Chart]:
    """A line from end to end, of rows that have both."""
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    return [inside.mark_rule(strokeWidth=2, yOffset=MARK_DOWN, clip=True, opacity=0.8).encode(x=x("low"), x2="high:Q")]


def caps(base: alt.Chart, x: XAxis) -> list[alt.Chart]:
    """At both ends of an interval: they are seen where the dot covers the rest."""
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    caps = inside.mark_tick(thickness=1.5, size=16, yOffset=MARK_DOWN, clip=True)
    return [caps.encode(x=x("low")), caps.encode(x=x("high"))]


def dots(base: alt.Chart, x: XAxis) -> alt.Chart:
    """The values."""
    inside = base.transform_filter("datum.at === 'inside'")
    return inside.mark_point(filled=True, opacity=1, size=80, yOffset=MARK_DOWN).encode(x=x("value"))


def off_axis(base: alt.Chart, x: XAxis) -> list[alt.Chart]:
    """Triangles at the edge for values that the axis does not reach."""
    return [
        base.transform_filter(f"datum.at === '{side}'")
        .mark_point(filled=True, opacity=1, size=110, yOffset=MARK_DOWN, shape=f"triangle-{side}", xOffset=inward)
        .encode(x=x("edge"))
        for side, inward in (("left", 7), ("right", -7))
    ]


def ground(rows: Sequence[ChartRow], value: float | None, x: XAxis) -> list[alt.Chart]:
    """A line under the marks of every row, and a notch where `value` is."""
    line = by_row(rows).mark_rule(style="ground", yOffset=MARK_DOWN).encode(x=alt.value(0), x2=alt.value("width"))
    if value is None:
        return [line]
    notched = by_row([{**row, "notch": value} for row in rows], rows)
    return [
        line,
        notched.mark_tick(style="notch", thickness=1.5, size=22, yOffset=MARK_DOWN).encode(x=x("notch")),
    ]


def texts(rows: Sequence[ChartRow], width: Width) -> list[alt.Chart]:
    """The arm's label at the left end of its row, its numbers at the right."""
    base = by_row([{**row, "lines": (lines := _lines(row))[0], "up": _LINE * (1 - lines[1])} for row in rows])
    taken = _LETTER * max(len(row["text"]) for row in rows) + 2 * _LETTER
    is_narrow = f"containerSize()[0] < {_needed(rows)}" if width == "container" else str(width < _needed(rows)).lower()
    # Beside another picture, the name `width` is not that of this one.
    room = "width" if width == "container" else str(width)
    limit: Any = {"expr": f"{is_narrow} ? {room} : max(80, {room} - {taken})"}
    up: Any = {"expr": f"{is_narrow} ? datum.up : 0"}
    said: Any = {"expr": f"{is_narrow} ? datum.lines : datum.arm"}
    left = base.mark_text(
        align="left", yOffset=_LABEL_UP, dy=up, fontSize=13, fontWeight=500, lineHeight=_LINE, limit=limit, text=said
    )
    right = base.mark_text(align="right", yOffset=_LABEL_UP, fontSize=12)
    return [left.encode(x=alt.value(0)), right.encode(x=alt.value("width"), text="text:N")]


def _lines(row: ChartRow) -> tuple[list[str], int]:
    """A row's label as it is broken, and the lines that it takes with the numbers, which are in the last one."""
    label = textwrap.wrap(row["arm"], _BROKEN) or [""]
    fits = len(label[-1]) + 2 + len(row["text"]) <= _BROKEN
    return label, len(label) + (not fits)


def _needed(rows: Sequence[ChartRow]) -> int:
    """Pixels in which every label fits beside its row's numbers."""
    return _LETTER * (max(len(row["arm"]) + len(row["text"]) for row in rows) + 2)


def higher_where_narrow(chart: alt.LayerChart, rows: Sequence[ChartRow]) -> alt.LayerChart:
    """Return the chart with the height that it has if labels are broken: its page sets it, or the picture that it is a
    part of, whose width is known."""
    height = (ROW + _LINE * (max(_lines(row)[1] for row in rows) - 1)) * len(rows)
    if isinstance(chart.width, int):
        return chart.properties(height=height) if chart.width < _needed(rows) else chart
    return chart.properties(usermeta={"narrow": {"below": _needed(rows), "height": height}})


def place_on_axis(rows: Sequence[ChartRow], x: XAxis) -> None:
    """Add where each row is drawn: `inside` the axis, at its `left` or `right` edge if beyond it, or `nowhere`."""
    for row in rows:
        value = row["value"]
        row["at"] = "nowhere" if value is None else "left" if value < x.low else "right" if value > x.high else "inside"
        row["edge"] = None if value is None else min(max(value, x.low), x.high)
