"""Curves over training tokens. The vertical axis and the names beside the lines are also used by other charts with one
line per arm.

Dashes distinguish overlapping lines. The page sets the Vega parameter `chosen` to highlight one arm.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import scipy  # loads its parts on first use

from archlab.report.charts.axes import LARGE, axis, logarithmic, padded, plain, spaced, without_outliers
from archlab.report.charts.marks import (
    ON_A_PHONE,
    ChartRow,
    Width,
    chart_of,
    color,
    crosshair,
    dashes,
    layered,
    tooltip,
)
from archlab.study.formatting import amount
from archlab.study.outcomes.schema import Unit

_LINE = 15
"""Minimum vertical distance between two names, in pixels."""

_LEADER = 16
"""Length of the line from the end of a curve to its name, in pixels."""

_ROOM = 190
"""Maximum width of a name beside the lines on a page, in pixels."""

_ROOM_ON_A_PHONE, _LETTERS_ON_A_PHONE = 84, 12
"""Maximum width of a name on a phone in pixels, and the number of letters that fit."""

_BEYOND = 20
"""Maximum distance of a drawn point from the edge of the chart, in multiples of the chart's height."""

_TINY = -700.0
"""Smallest logarithm of a value that is drawn. exp(700) and exp(-700) can both be stored as floats."""

_GAP, _GAP_ON_A_PHONE = 0.08, 0.26
"""Minimum gap between labels of the horizontal axis, as a fraction of the axis: on a page, and on a phone."""

_LABEL = 46
"""Minimum distance between two labels of the horizontal axis, in pixels."""


class Axis(NamedTuple):
    """Vertical axis of curves: its title, unit and scale."""

    title: str
    unit: Unit
    is_logarithmic: bool = False

    def text(self, value: float) -> str:
        """Return the value, formatted like archlab's tables."""
        return amount(value, self.unit)


class YAxis:
    """Vertical axis that all layers of a chart share. The call `y("low")` encodes the field `low` on this axis."""

    def __init__(self, title: str, unit: Unit, low: float, high: float, is_logarithmic: bool = False) -> None:
        self.low, self.high, self.is_logarithmic = low, high, is_logarithmic
        kind = "log" if is_logarithmic else "linear"
        self._scale = alt.Scale(type=kind, domain=[low, high], nice=False, zero=False)
        if is_logarithmic:
            self._axis = alt.Axis(title=f"{title}, logarithmic axis", values=logarithmic(low, high), format="~g")
        else:
            self._axis = axis(title, unit, low, high, most=6)

    def __call__(self, field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=self._scale, axis=self._axis)

    def clamped(self, value: float) -> float:
        """Return the value, limited to the range of the axis."""
        return min(max(value, self.low), self.high)

    def in_reach(self, value: float) -> float:
        """Return the value. If it is very far beyond the axis, move it closer.

        A line to the moved point leaves the chart almost as steeply. The limit is needed because the renderer aborts
        the process if coordinates are millions of pixels away.
        """
        if self.is_logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            reach = _BEYOND * (high - low)
            at = math.log(value) if value > 0 else -math.inf
            return math.exp(min(max(at, low - reach, _TINY), high + reach, -_TINY))
        reach = _BEYOND * (self.high - self.low)
        return min(max(value, self.low - reach), self.high + reach)


def curves(
    arms: Sequence[str],
    mean_rows: Sequence[ChartRow],
    diverged: Sequence[ChartRow],
    vertical: Axis,
    *,
    marks: Sequence[ChartRow] = (),
    width: Width = "container",
    from_zero: bool = False,
    second_half: bool = False,
    named_beside: bool = True,
    height: int = 260,
) -> alt.LayerChart | None:
    """Return a chart with one line per name through its means. A band around the line reaches from the lowest to the
    highest value.

    A name with a single mean is drawn as a point. A diverged run is a thin line that ends in a cross. If a cross, or a
    triangle for one of the `marks`, is beyond the axis, it is drawn at the edge. If `named_beside` is True, each name
    is drawn beside the end of its line. Return None if no name has two means and no run diverged.
    """
    last = max((row["tokens"] for row in mean_rows or diverged), default=0)
    begin = last // 2 if second_half else 0
    mean_rows, diverged = ([row for row in rows if row["tokens"] >= begin] for rows in (mean_rows, diverged))
    if vertical.is_logarithmic:  # such an axis has no place for 0
        mean_rows = [row for row in mean_rows if row["low"] > 0]
    lines = mean_rows or [row for row in diverged if row["low"] > 0 or not vertical.is_logarithmic]
    per_name = Counter(row["arm"] for row in mean_rows)
    if not lines or (not diverged and max(per_name.values()) < 2):
        return None
    single_means = [row for row in mean_rows if per_name[row["arm"]] == 1]
    low, high = _range_of_ends(lines) if second_half else _range_of_lines(lines)
    y = YAxis(vertical.title, vertical.unit, *padded(low, high, vertical.is_logarithmic), vertical.is_logarithmic)
    x = _x(lines, begin, last, from_zero, width)
    base = chart_of(mean_rows).encode(x=x, color=color(arms), tooltip=tooltip("arm", "text"))
    height = tall_enough(height, len(arms)) if named_beside else height
    layers = [
        base.mark_area(clip=True).encode(y=y("low"), y2="high:Q", opacity=opacity(0.16, 0.03)),
        base.mark_line(clip=True, strokeWidth=2).encode(y=y("mean"), strokeDash=dashes(arms), opacity=opacity(1, 0.12)),
        *(crosshair(base, "tokens", y("mean"), "arm") if width == "container" else []),  # a picture has no pointer
        *([_points(single_means, x, y, arms)] if single_means else []),
        *_diverged(diverged, x, y, arms),
        *_marked([row for row in marks if row["tokens"] >= begin], x, y, arms),
        *(names([*diverged, *mean_rows], y, width, height, arms) if named_beside else []),
    ]
    description = f"{vertical.title} over training tokens: one line per name, in a band from lowest to highest value"
    return layered(layers, description, height, width).add_params(single_out())


def _x(lines: Sequence[ChartRow], begin: int, last: int, from_zero: bool, width: Width) -> alt.X:
    """Return the axis of training tokens. The end of training always has a label.

    If `from_zero` is True, early tokens are as important as late ones. The axis is then logarithmic, unless training is
    very short. Only the part before the first evaluation after an update is linear, because a logarithmic axis cannot
    show 0.
    """
    first = min((row["tokens"] for row in lines if row["tokens"]), default=0)
    is_logarithmic = from_zero and 0 < 4 * first <= last
    if is_logarithmic:
        scale = alt.Scale(type="symlog", constant=first, domain=[0, last], nice=False)
        title, ticks = "training tokens, logarithmic axis", [0, *logarithmic(first, last), last]
    else:
        scale = alt.Scale(domain=[begin, last], nice=False)
        title, ticks = "training tokens", [*plain(begin, last), last]

    def place(tokens: float) -> float:
        if is_logarithmic:
            return math.log1p(tokens / first) / math.log1p(last / first)
        return (tokens - begin) / (last - begin or 1)

    ticks = spaced(ticks, place, _GAP if width == "container" else max(_GAP, _LABEL / width))
    on_phone = spaced(ticks, place, _GAP_ON_A_PHONE)
    label = LARGE
    if width == "container":
        label = f"{ON_A_PHONE} && indexof({on_phone}, datum.value) < 0 ? '' : {LARGE}"
    axis = alt.Axis(title=title, values=ticks, labelExpr=label, labelOverlap=False, grid=False)
    return alt.X("tokens:Q", scale=scale, axis=axis)


def _range_of_lines(rows: Sequence[ChartRow]) -> tuple[float, float]:
    return min(row["low"] for row in rows), max(row["high"] for row in rows)


def _range_of_ends(rows: Sequence[ChartRow]) -> tuple[float, float]:
    """Return the range that the lines and their bands cover. The few lines that end far from all others are ignored."""
    last = {row["arm"]: row["mean"] for row in rows}
    near = without_outliers([*last.values()])
    return _range_of_lines([row for row in rows if last[row["arm"]] in near])


def _points(rows: Sequence[ChartRow], x: alt.X, y: YAxis, arms: Sequence[str]) -> alt.Chart:
    base = chart_of(rows).encode(x=x, y=y("mean"), color=color(arms), opacity=opacity(1, 0.12))
    return base.mark_point(clip=True, size=50, filled=True)


def _diverged(diverged: Sequence[ChartRow], x: alt.X, y: YAxis, arms: Sequence[str]) -> list[alt.Chart]:
    if not diverged:
        return []
    rows = [{**row, "clamped": y.clamped(row["mean"]), "mean": y.in_reach(row["mean"])} for row in diverged]
    base = chart_of(rows)
    base = base.encode(x=x, color=color(arms), detail="seed:N", tooltip=tooltip("arm", "text"))
    base = base.encode(opacity=opacity(0.9, 0.12))
    end = base.transform_filter("datum.last").mark_point(shape="cross", angle=45, size=110, filled=True)
    return [base.mark_line(clip=True, strokeWidth=1).encode(y=y("mean")), end.encode(y=y("clamped"))]


def _marked(marks: Sequence[ChartRow], x: alt.X, y: YAxis, arms: Sequence[str]) -> list[alt.Chart]:
    if not marks:
        return []
    base = chart_of([{**row, "clamped": y.clamped(row["mean"])} for row in marks])
    base = base.encode(x=x, y=y("clamped"), color=color(arms), tooltip=tooltip("arm", "text"), opacity=opacity(1, 0.12))
    return [base.mark_point(shape="triangle-down", size=70, filled=True, yOffset=-8)]


def names(lines: Sequence[ChartRow], y: YAxis, width: Width, height: int, arms: Sequence[str]) -> list[alt.Chart]:
    """Return the name of each arm, to the right of the end of its line. If other names leave no room there, a thin
    line leads from the end to the name.

    On a phone, names that would be cut off are left out. The page then shows them above the chart.
    """
    limit: Any = 0  # no limit: a chart of known width grows beside its lines
    is_left_out = "false"
    if width == "container":
        limit = {"expr": f"{ON_A_PHONE} ? {_ROOM_ON_A_PHONE} : {_ROOM}"}
        is_left_out = ON_A_PHONE if max(map(len, arms), default=0) > _LETTERS_ON_A_PHONE else "false"
    name_text: Any = {"expr": f"{is_left_out} ? '' : datum.arm"}
    base = chart_of(name_rows(lines, y, _LINE / height))
    base = base.encode(x=alt.value("width"), color=color(arms), opacity=opacity(1, 0.25))
    distance: Any = {"expr": f"datum.is_moved ? {_LEADER + 4} : 6"}
    text = base.mark_text(align="left", dx=distance, fontSize=12, limit=limit, text=name_text)
    stroke: Any = {"expr": f"{is_left_out} ? 0 : 1"}
    leader = base.transform_filter("datum.is_moved").mark_rule(
        xOffset=2, x2Offset=_LEADER, strokeWidth=stroke, aria=False
    )
    leader = leader.encode(x2=alt.value("width"), y=y("end"), y2="beside:Q")
    return [leader, text.encode(y=y("beside"), tooltip=tooltip("arm"))]


def name_rows(lines: Sequence[ChartRow], y: YAxis, gap: float) -> list[ChartRow]:
    """Return the name of each arm, and the value on the vertical axis at which it is drawn. Together, the names are as
    close as possible to the ends of their lines, by the sum of squared distances.

    Names are at least `gap` apart, as a fraction of the chart's height. If a line ends outside the chart, its name is
    at the edge. `end` is the value at which the line ends, and `is_moved` says whether the name is away from it.
    """
    position: Callable[[float], float] = math.log if y.is_logarithmic else float
    value_at: Callable[[float], float] = math.exp if y.is_logarithmic else float
    bottom, height = position(y.low), position(y.high) - position(y.low) or 1.0
    ends = {row["arm"]: (position(y.clamped(row["mean"])) - bottom) / height for row in lines}
    ordered = sorted(ends, key=lambda arm: ends[arm])
    below = gap * np.arange(len(ordered))  # room for the names below each name
    without_gaps = scipy.optimize.isotonic_regression([ends[name] for name in ordered] - below).x
    places = np.clip(without_gaps, 0.0, 1.0 - below[-1]) + below
    return [
        {
            "arm": name,
            "beside": value_at(bottom + place * height),
            "end": value_at(bottom + ends[name] * height),
            "is_moved": abs(place - ends[name]) > gap / 4,
        }
        for name, place in zip(ordered, places.tolist(), strict=True)
    ]


def tall_enough(height: int, n_arms: int) -> int:
    """Return a height in pixels that leaves room for the names of all arms."""
    return max(height, _LINE * n_arms)


def opacity(shown: float, faded: float, field: str = "arm") -> Any:
    """Return the opacity of an arm: `shown` if this arm is highlighted or if none is, otherwise `faded`.

    `field` is the field of the chart's data that holds the name of the arm.
    """
    return alt.when(f"chosen === null || datum.{field} === chosen").then(alt.value(shown)).otherwise(alt.value(faded))


def single_out() -> alt.Parameter:
    """Return the Vega-Lite parameter through which the page highlights an arm."""
    return alt.param(name="chosen", value=None)


def never_single_out() -> alt.Parameter:
    """Return a parameter for charts whose lines are not arms. It replaces `single_out`, so that the page cannot fade
    their lines."""
    return alt.param(name="chosen", expr="null")
