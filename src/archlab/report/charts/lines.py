"""Curves over training tokens, and what all pictures with a line per arm share: the vertical axis, the names at the
lines' ends. A line is told from those that it overlaps by its dashes. The page sets `chosen` to single out an arm.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt

from archlab.report.charts.axes import LARGE, axis, logarithmic, padded, plain, spaced, without_outliers
from archlab.report.charts.marks import ON_A_PHONE, ChartRow, Width, chart_of, color, dashes, layered, tooltip
from archlab.study.formatting import amount
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

_GAP, _GAP_ON_A_PHONE = 0.08, 0.26
"""Between the labels of training tokens, as a share of the axis."""

_LABEL = 46
"""Pixels from one label of tokens to the next, so that both can be read."""


class Axis(NamedTuple):
    """What the vertical axis of curves shows."""

    title: str
    unit: Unit
    is_logarithmic: bool = False

    def text(self, value: float) -> str:
        """As our tables write it."""
        return amount(value, self.unit)


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


def curves(
    named: Sequence[str],
    means: Sequence[ChartRow],
    gone: Sequence[ChartRow],
    drawn: Axis,
    *,
    marks: Sequence[ChartRow] = (),
    width: Width = "container",
    from_zero: bool = False,
    second_half: bool = False,
    named_beside: bool = True,
    height: int = 260,
) -> alt.LayerChart | None:
    """A line through the means of each name, in a band from the lowest to the highest; a single mean is a point.

    None if no name has two means, and none diverged. What diverged (`gone`) is a thin line that ends in a cross, held
    at the edge where the line leaves the picture. `marks` are triangles, held there too. `named_beside`: names stand
    where the lines end.
    """
    last = max((row["tokens"] for row in means or gone), default=0)
    begin = last // 2 if second_half else 0
    means, gone = ([row for row in rows if row["tokens"] >= begin] for rows in (means, gone))
    if drawn.is_logarithmic:  # which has no place for 0
        means = [row for row in means if row["low"] > 0]
    lines = means or [row for row in gone if row["low"] > 0 or not drawn.is_logarithmic]
    per_name = Counter(row["arm"] for row in means)
    if not lines or (not gone and max(per_name.values()) < 2):
        return None
    alone = [row for row in means if per_name[row["arm"]] == 1]
    low, high = _range_of_ends(lines) if second_half else _range_of_lines(lines)
    y = YAxis(drawn.title, drawn.unit, *padded(low, high, drawn.is_logarithmic), drawn.is_logarithmic)
    x = _x(lines, begin, last, from_zero, width)
    base = chart_of(means).encode(x=x, color=color(named), tooltip=tooltip("arm", "text"))
    height = tall_enough(height, len(named)) if named_beside else height
    layers = [
        base.mark_area(clip=True).encode(y=y("low"), y2="high:Q", opacity=opacity(0.16, 0.03)),
        base.mark_line(clip=True, strokeWidth=2).encode(
            y=y("mean"), strokeDash=dashes(named), opacity=opacity(1, 0.12)
        ),
        base.mark_point(clip=True, size=90, opacity=0, filled=True).encode(y=y("mean")),
        *([_points(alone, x, y, named)] if alone else []),
        *_diverged(gone, x, y, named),
        *_marked([row for row in marks if row["tokens"] >= begin], x, y, named),
        *([names([*gone, *means], y, width, height, named)] if named_beside else []),
    ]
    description = f"{drawn.title} over training tokens, a line for each, with a band from the lowest to the highest"
    return layered(layers, description, height, width).add_params(single_out())


def _x(lines: Sequence[ChartRow], begin: int, last: int, from_zero: bool, width: Width) -> alt.X:
    """Training tokens. Where the early ones matter as much as the late ones, the axis is logarithmic, and linear only
    before the first evaluation after an update. The end of the training always has its label."""
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
    """Return both ends of the lines and their bands."""
    return min(row["low"] for row in rows), max(row["high"] for row in rows)


def _range_of_ends(rows: Sequence[ChartRow]) -> tuple[float, float]:
    """Return both ends of the lines and their bands, without the few that end far from all others."""
    last = {row["arm"]: row["mean"] for row in rows}
    near = without_outliers([*last.values()])
    return _range_of_lines([row for row in rows if last[row["arm"]] in near])


def _points(rows: Sequence[ChartRow], x: alt.X, y: YAxis, named: Sequence[str]) -> alt.Chart:
    base = chart_of(rows).encode(x=x, y=y("mean"), color=color(named), opacity=opacity(1, 0.12))
    return base.mark_point(clip=True, size=50, filled=True)


def _diverged(gone: Sequence[ChartRow], x: alt.X, y: YAxis, named: Sequence[str]) -> list[alt.Chart]:
    if not gone:
        return []
    rows = [{**row, "held": y.held(row["mean"]), "mean": y.in_reach(row["mean"])} for row in gone]
    base = chart_of(rows)
    base = base.encode(x=x, color=color(named), detail="seed:N", tooltip=tooltip("arm", "text"))
    base = base.encode(opacity=opacity(0.9, 0.12))
    end = base.transform_filter("datum.last").mark_point(shape="cross", angle=45, size=110, filled=True)
    return [base.mark_line(clip=True, strokeWidth=1).encode(y=y("mean")), end.encode(y=y("held"))]


def _marked(marks: Sequence[ChartRow], x: alt.X, y: YAxis, named: Sequence[str]) -> list[alt.Chart]:
    if not marks:
        return []
    base = chart_of([{**row, "held": y.held(row["mean"])} for row in marks])
    base = base.encode(x=x, y=y("held"), color=color(named), tooltip=tooltip("arm", "text"), opacity=opacity(1, 0.12))
    return [base.mark_point(shape="triangle-down", size=70, filled=True, yOffset=-8)]


def names(lines: Sequence[ChartRow], y: YAxis, width: Width, height: int, named: Sequence[str]) -> alt.Chart:
    """Return each arm's name, which stands to the right of the lines, where its own ends. On a phone, names that would
    be cut are left out: the page has them above."""
    limit: Any = 0  # none: a picture of known width grows beside its lines
    is_left_out = "false"
    if width == "container":
        limit = {"expr": f"{ON_A_PHONE} ? {_ROOM_ON_A_PHONE} : {_ROOM}"}
        is_left_out = ON_A_PHONE if max(map(len, named), default=0) > _LETTERS_ON_A_PHONE else "false"
    said: Any = {"expr": f"{is_left_out} ? '' : datum.arm"}
    base = chart_of(name_rows(lines, y, _LINE / height))
    text = base.mark_text(align="left", dx=6, fontSize=12, limit=limit, text=said)
    text = text.encode(x=alt.value("width"), y=y("beside"), tooltip=tooltip("arm"))
    return text.encode(color=color(named), opacity=opacity(1, 0.25))


def name_rows(lines: Sequence[ChartRow], y: YAxis, gap: float) -> list[ChartRow]:
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


def tall_enough(height: int, n_arms: int) -> int:
    """Pixels in which the names of all arms have their place."""
    return max(height, _LINE * n_arms)


def opacity(shown: float, faded: float, field: str = "arm") -> Any:
    """Of an arm that is singled out, or while none is; and of all others. `field` holds its name."""
    return alt.when(f"chosen === null || datum.{field} === chosen").then(alt.value(shown)).otherwise(alt.value(faded))


def single_out() -> alt.Parameter:
    """By which the page says which arm is singled out."""
    return alt.param(name="chosen", value=None)


def never_single_out() -> alt.Parameter:
    """For a picture whose lines are no arms, so that it stays as it is when one is singled out."""
    return alt.param(name="chosen", expr="null")
