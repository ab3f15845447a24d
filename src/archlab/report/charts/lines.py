"""Parts that pictures with a line per arm share: colors, the vertical axis, and the arms' names at the lines' ends.

A line is told from those that it overlaps by its dashes. The page sets `chosen` to single out an arm.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from archlab.report.charts.axes import axis, logarithmic, without_outliers
from archlab.report.charts.marks import ON_A_PHONE, Row, Width, data, tooltip
from archlab.study.outcome_schema import Unit

_LINE = 15
"""Pixels from one name to the next."""

_ROOM = 190
"""Pixels that a name beside the lines may take on a page."""

_ROOM_ON_A_PHONE, _LETTERS_ON_A_PHONE = 84, 12
"""Pixels, and how many letters have their place in them."""


_BEYOND = 20
"""Heights of a picture."""

_TINY = -700.0
"""Logarithm of a number that a float still holds, as that of its inverse."""


class YAxis:
    """`y("low")`: a field on the one vertical axis that all layers of a chart share."""

    def __init__(self, title: str, unit: Unit, low: float, high: float, is_logarithmic: bool = False) -> None:
        self.low, self.high, self.is_logarithmic = low, high, is_logarithmic
        kind = "log" if is_logarithmic else "linear"
        self._scale = alt.Scale(type=kind, domain=[low, high], nice=False, zero=False)
        if is_logarithmic:
            self._axis = alt.Axis(title=f"{title}, logarithmic axis", values=logarithmic(low, high), format="~g")
        else:
            self._axis = axis(title, unit, low, high, most=6)

    def __call__(self, field: str) -> alt.Y:
        """The field, on this axis."""
        return alt.Y(f"{field}:Q", scale=self._scale, axis=self._axis)

    def held(self, value: float) -> float:
        """The value, or the end of the axis where it is beyond."""
        return min(max(value, self.low), self.high)

    def in_reach(self, value: float) -> float:
        """The value, or a point so far beyond the end of the axis that a line to it leaves as steeply. The renderer
        aborts the process where coordinates are millions of pixels away."""
        if self.is_logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            reach = _BEYOND * (high - low)
            at = math.log(value) if value > 0 else -math.inf
            return math.exp(min(max(at, low - reach, _TINY), high + reach, -_TINY))
        reach = _BEYOND * (self.high - self.low)
        return min(max(value, self.low - reach), self.high + reach)


def colour(named: Sequence[str]) -> alt.Color:
    """Each arm's own, of the page's theme."""
    return alt.Color("arm:N", scale=alt.Scale(domain=list(named), range="category"), legend=None)


def opacity(shown: float, faded: float, field: str = "arm") -> Any:
    """Of an arm that is singled out, or while none is; and of all others. `field` holds its name."""
    return alt.when(f"chosen === null || datum.{field} === chosen").then(alt.value(shown)).otherwise(alt.value(faded))


def single_out() -> alt.Parameter:
    """By which the page says which arm is singled out."""
    return alt.param(name="chosen", value=None)


def never_single_out() -> alt.Parameter:
    """For a picture whose lines are no arms, so that it stays as it is when one is singled out."""
    return alt.param(name="chosen", expr="null")


def tall_enough(height: int, n_arms: int) -> int:
    """Pixels in which the names of all arms have their place."""
    return max(height, _LINE * n_arms)


def names(lines: Sequence[Row], y: YAxis, width: Width, height: int, named: Sequence[str]) -> alt.Chart:
    """Return each arm's name, which stands to the right of the lines, where its own ends. On a phone, names that would
    be cut are left out: the page has them above."""
    limit: Any = 0  # none: a picture of known width grows beside its lines
    is_left_out = "false"
    if width == "container":
        limit = {"expr": f"{ON_A_PHONE} ? {_ROOM_ON_A_PHONE} : {_ROOM}"}
        is_left_out = ON_A_PHONE if max(map(len, named), default=0) > _LETTERS_ON_A_PHONE else "false"
    said: Any = {"expr": f"{is_left_out} ? '' : datum.arm"}
    base = alt.Chart(data(name_rows(lines, y, _LINE / height)))
    text = base.mark_text(align="left", dx=6, fontSize=12, limit=limit, text=said)
    text = text.encode(x=alt.value("width"), y=y("beside"), tooltip=tooltip("arm"))
    return text.encode(color=colour(named), opacity=opacity(1, 0.25))


def name_rows(lines: Sequence[Row], y: YAxis, gap: float) -> list[Row]:
    """Each arm's name and the value beside which it stands: that of its line's end, at least `gap`, a share of the
    picture's height, from the next. Where a line ends beyond the picture, its name stands at the edge."""
    to: Callable[[float], float] = math.log if y.is_logarithmic else float
    back: Callable[[float], float] = math.exp if y.is_logarithmic else float
    bottom, height = to(y.low), to(y.high) - to(y.low) or 1.0
    ends = {row["arm"]: (to(y.held(row["mean"])) - bottom) / height for row in lines}
    found = sorted(ends, key=lambda arm: ends[arm])
    places = [ends[name] for name in found]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], 1.0 if i == len(places) - 1 else places[i + 1] - gap)
    return [{"arm": name, "beside": back(bottom + place * height)} for name, place in zip(found, places, strict=True)]


def of_lines(rows: Sequence[Row]) -> tuple[float, float]:
    """All of the lines and their bands."""
    return min(row["low"] for row in rows), max(row["high"] for row in rows)


def of_ends(rows: Sequence[Row]) -> tuple[float, float]:
    """The lines and their bands, without the few that end far from all others."""
    last = {row["arm"]: row["mean"] for row in rows}
    near = without_outliers([*last.values()])
    return of_lines([row for row in rows if last[row["arm"]] in near])
