"""Parts of charts with one row per comparison. In each row, the label and the numbers are above the marks.

Labels are inside the chart, because a separate column for long names would leave too little width on a phone. If a
label and the numbers of its row do not fit side by side, labels are wrapped and rows become higher. The data of a row
are its label (`arm`), its numbers as `text`, its `value`, `low` and `high`, and its place on the axis (see
`place_on_axis`).
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from archlab.report.charts.marks import ChartRow, Width, chart_of

ROW = 46
_LABEL_UP, MARK_DOWN = -10, 9
"""`ROW` is the height of a row. The other two numbers are the vertical offsets of the label (up) and of the marks
(down) from the middle of the row. All are in pixels."""

_LETTER = 7
"""Largest width of a letter, in pixels."""

_LINE = 16
"""Distance between the lines of a label, in pixels."""

_LINE_LENGTH = 44
"""Maximum number of characters in a line of a wrapped label. A line of this length fits on a phone."""


@dataclass(frozen=True)
class XAxis:
    """Horizontal axis that all layers of a chart share. The call `x("low")` encodes the field `low` on this axis."""

    low: float
    high: float
    scale: alt.Scale
    axis: alt.Axis

    def __call__(self, field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=self.scale, axis=self.axis)


def by_row(rows: Sequence[ChartRow], order: Sequence[ChartRow] | None = None) -> alt.Chart:
    """Return a chart with one row per label, in the given order."""
    labels = [row["arm"] for row in order or rows]
    return chart_of(rows).encode(y=alt.Y("arm:N", sort=labels, axis=None, scale=alt.Scale(domain=labels)))


def intervals(base: alt.Chart, x: XAxis) -> list[alt.Chart]:
    """Return lines from `low` to `high`, for the rows that have both values."""
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    return [inside.mark_rule(strokeWidth=2, yOffset=MARK_DOWN, clip=True, opacity=0.8).encode(x=x("low"), x2="high:Q")]


def caps(base: alt.Chart, x: XAxis) -> list[alt.Chart]:
    """Return ticks at both ends of each interval. The ticks stay visible if the dot covers the rest of the interval."""
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    caps = inside.mark_tick(thickness=1.5, size=16, yOffset=MARK_DOWN, clip=True)
    return [caps.encode(x=x("low")), caps.encode(x=x("high"))]


def dots(base: alt.Chart, x: XAxis) -> alt.Chart:
    inside = base.transform_filter("datum.at === 'inside'")
    return inside.mark_point(filled=True, opacity=1, size=80, yOffset=MARK_DOWN).encode(x=x("value"))


def off_axis(base: alt.Chart, x: XAxis) -> list[alt.Chart]:
    """Return triangles at the edge of the chart for values beyond the axis."""
    return [
        base.transform_filter(f"datum.at === '{side}'")
        .mark_point(filled=True, opacity=1, size=110, yOffset=MARK_DOWN, shape=f"triangle-{side}", xOffset=inward)
        .encode(x=x("edge"))
        for side, inward in (("left", 7), ("right", -7))
    ]


def ground(rows: Sequence[ChartRow], value: float | None, x: XAxis) -> list[alt.Chart]:
    """Return a horizontal line behind the marks of every row. It has a notch at `value`, unless `value` is None."""
    line = by_row(rows).mark_rule(style="ground", yOffset=MARK_DOWN).encode(x=alt.value(0), x2=alt.value("width"))
    if value is None:
        return [line]
    notched = by_row([{**row, "notch": value} for row in rows], rows)
    return [
        line,
        notched.mark_tick(style="notch", thickness=1.5, size=22, yOffset=MARK_DOWN).encode(x=x("notch")),
    ]


def texts(rows: Sequence[ChartRow], width: Width) -> list[alt.Chart]:
    """Return the label at the left end of each row, and the numbers of the row at the right end."""
    base = by_row([{**row, "lines": (lines := _lines(row))[0], "up": _LINE * (1 - lines[1])} for row in rows])
    numbers_width = _LETTER * max(len(row["text"]) for row in rows) + 2 * _LETTER
    is_narrow = f"containerSize()[0] < {_needed(rows)}" if width == "container" else str(width < _needed(rows)).lower()
    # In a concatenated chart, the signal `width` is not the width of this part.
    room = "width" if width == "container" else str(width)
    limit: Any = {"expr": f"{is_narrow} ? {room} : max(80, {room} - {numbers_width})"}
    up: Any = {"expr": f"{is_narrow} ? datum.up : 0"}
    label: Any = {"expr": f"{is_narrow} ? datum.lines : datum.arm"}
    left = base.mark_text(
        align="left", yOffset=_LABEL_UP, dy=up, fontSize=13, fontWeight=500, lineHeight=_LINE, limit=limit, text=label
    )
    right = base.mark_text(align="right", yOffset=_LABEL_UP, fontSize=12)
    return [left.encode(x=alt.value(0)), right.encode(x=alt.value("width"), text="text:N")]


def _lines(row: ChartRow) -> tuple[list[str], int]:
    """Return the wrapped label of a row, and its number of lines. The numbers of the row are on the last line."""
    label = textwrap.wrap(row["arm"], _LINE_LENGTH) or [""]
    fits = len(label[-1]) + 2 + len(row["text"]) <= _LINE_LENGTH
    return label, len(label) + (not fits)


def _needed(rows: Sequence[ChartRow]) -> int:
    return _LETTER * (max(len(row["arm"]) + len(row["text"]) for row in rows) + 2)


def taller_if_narrow(chart: alt.LayerChart, rows: Sequence[ChartRow]) -> alt.LayerChart:
    """Return the chart with enough height for wrapped labels.

    If the width of the chart is fixed, the height is set here. Otherwise, the page sets the height when the chart is
    narrow.
    """
    height = (ROW + _LINE * (max(_lines(row)[1] for row in rows) - 1)) * len(rows)
    if isinstance(chart.width, int):
        return chart.properties(height=height) if chart.width < _needed(rows) else chart
    return chart.properties(usermeta={"narrow": {"below": _needed(rows), "height": height}})


def place_on_axis(rows: Sequence[ChartRow], x: XAxis) -> None:
    """Add a field `at` to each row: `inside` if the value is within the axis, `left` or `right` if it is beyond that
    end, and `nowhere` if there is no value. Also add a field `edge`: the value, limited to the axis."""
    for row in rows:
        value = row["value"]
        row["at"] = "nowhere" if value is None else "left" if value < x.low else "right" if value > x.high else "inside"
        row["edge"] = None if value is None else min(max(value, x.low), x.high)
