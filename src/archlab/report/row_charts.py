"""Pictures with a row per arm: where each arm stands, and how far it is from its reference.

Rows carry their labels inside the picture, above the marks, so that long names cost no width on a phone. Where a label
and its row's numbers do not fit side by side, labels are broken and rows are higher.
Colours come from the config that palette.py makes, so one chart serves light and dark.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from archlab.config.outcomes import Unit
from archlab.report.marks import Width, data, layered, tooltip
from archlab.report.palette import SHAPES, VERDICTS
from archlab.report.ranges import padded, without_outliers
from archlab.report.rows import Row, difference_rows, ends, labels, level_rows, place_on_axis, seed_rows
from archlab.report.ticks import axis
from archlab.study.formatting import with_unit
from archlab.study.record import Heading, StudySummary

_ROW = 46
_LABEL_UP, _MARK_DOWN = -10, 9
"""Pixels: an arm's row, its label above the middle, its marks below."""

_LETTER = 7
"""Pixels that a letter takes, at most."""

_LINE = 16
"""Pixels from one line of a label to the next."""

_BROKEN = 44
"""Letters in a line of a label that is broken; a phone has room for them."""

_SIDE = {"lower": " (left is better)", "higher": " (right is better)", "neither": ""}


def levels_are_cut(summary: StudySummary) -> bool:
    """Whether an arm stands beyond the axis of its picture: the one with `whole` then shows it, interval and all."""
    return _is_cut(level_rows(summary))


def differences_are_cut(summary: StudySummary) -> bool:
    """As `levels_are_cut`, of the differences."""
    return _is_cut(difference_rows(summary))


def _is_cut(rows: Sequence[Row]) -> bool:
    return len(_near(rows, whole=False)) < len(_values(rows))


def levels(summary: StudySummary, width: Width = "container", *, whole: bool = False) -> alt.LayerChart:
    """The outcome of every arm: a tick per seed, their mean, and the 95% interval of the mean.

    An arm that is far from the others is a triangle at the edge, unless the `whole` range is wanted.
    """
    rows, seeds = level_rows(summary), seed_rows(summary)
    near = _near(rows, whole)
    inside = {row["arm"] for row in rows if row["value"] in near}
    shown = ends(rows, near) + [seed["value"] for seed in seeds if seed["arm"] in inside]
    x = _XAxis(shown or [0.0, 1.0], axis_title(summary.outcome), summary.outcome.unit)
    place_on_axis(rows, x.low, x.high)
    named = list(labels(summary).values())
    colour = alt.Color("arm:N", scale=alt.Scale(domain=named, range="category"), legend=None)
    base = _rows(rows).encode(color=colour, tooltip=tooltip("arm", "text"))
    ticks = _rows([seed for seed in seeds if x.low <= seed["value"] <= x.high], rows).encode(color=colour, x=x("value"))
    start = summary.arms[0].mean if summary.against == "base" and summary.arms[0].mean in near else None
    layers = [
        *_ground(rows, start, x),
        _moves(base, x),
        *_intervals(base, x),
        ticks.mark_tick(thickness=1.5, size=13, opacity=0.6, yOffset=_MARK_DOWN),
        _dots(base, x),
        *_off_axis(base, x),
        *_texts(rows, width),
    ]
    description = f"{summary.outcome.title} of every arm, with the 95% interval of its mean"
    return _higher_where_narrow(layered(layers, width, _ROW * len(rows), description), rows)


def differences(
    summary: StudySummary,
    width: Width = "container",
    *,
    legend: bool = False,
    whole: bool = False,
    compared_only: bool = False,
) -> alt.LayerChart | None:
    """Every arm minus its reference, with its interval; None where nothing was compared.

    `whole` as for `levels`; `compared_only`: the arms without a reference have no row.
    """
    if not any(arm.comparison for arm in summary.arms):
        return None
    rows = [row for row in difference_rows(summary) if not compared_only or row["verdict"]]
    near = _near(rows, whole)
    shown = [0.0, *ends(rows, near)]
    x = _XAxis(shown, axis_title(summary.outcome, "difference"), summary.outcome.unit)
    place_on_axis(rows, x.low, x.high)
    found = [verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)]
    key = alt.Legend(title=None, orient="bottom", direction="horizontal", values=found) if legend else None
    colour = alt.Color("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range="ordinal"), legend=key)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=list(SHAPES)), legend=key)
    base = _rows(rows).encode(color=colour, tooltip=tooltip("arm", "verdict", "text", "detectable"))
    layers = [
        *_ground(rows, 0.0, x),
        *_intervals(base, x),
        *_caps(base, x),
        _dots(base, x).encode(shape=shape),
        *_off_axis(base, x),
        *_texts(rows, width),
    ]
    description = "Paired difference of every arm to its reference, with its interval"
    return _higher_where_narrow(layered(layers, width, _ROW * len(rows), description), rows)


def axis_title(outcome: Heading, of: str = "") -> str:
    """`difference in bits per byte (left is better)`."""
    unit = outcome.unit if with_unit("", outcome.unit) else ""
    shown = f"{of} in {unit}" if of and unit else of or ", ".join(filter(None, [outcome.title, unit]))
    return shown + _SIDE[outcome.better]


# --- parts ------------------------------------------------------------------------------------------


def _values(rows: Sequence[Row]) -> list[float]:
    return [row["value"] for row in rows if row["value"] is not None]


def _near(rows: Sequence[Row], whole: bool) -> list[float]:
    """The values that the axis must reach."""
    return _values(rows) if whole else without_outliers(_values(rows))


class _XAxis:
    """`x("low")`: a field on the one horizontal axis that all layers of a chart share."""

    def __init__(self, shown: Sequence[float], title: str, unit: Unit) -> None:
        self.low, self.high = padded(min(shown), max(shown))
        self._scale = alt.Scale(domain=[self.low, self.high], nice=False, zero=False)
        most = 5 if max(shown) > min(shown) else 1
        self._axis = axis(title, unit, self.low, self.high, most=most, grid=False)

    def __call__(self, field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=self._scale, axis=self._axis)


def _rows(rows: Sequence[Row], order: Sequence[Row] | None = None) -> alt.Chart:
    """A chart with one row of its own per arm, in the study's order."""
    named = [row["arm"] for row in order or rows]
    return alt.Chart(data(rows)).encode(y=alt.Y("arm:N", sort=named, axis=None, scale=alt.Scale(domain=named)))


def _intervals(base: alt.Chart, x: _XAxis) -> list[alt.Chart]:
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    return [inside.mark_rule(strokeWidth=2, yOffset=_MARK_DOWN, clip=True, opacity=0.8).encode(x=x("low"), x2="high:Q")]


def _caps(base: alt.Chart, x: _XAxis) -> list[alt.Chart]:
    """At both ends of an interval: they are seen where the dot covers the rest."""
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    caps = inside.mark_tick(thickness=1.5, size=16, yOffset=_MARK_DOWN, clip=True)
    return [caps.encode(x=x("low")), caps.encode(x=x("high"))]


def _dots(base: alt.Chart, x: _XAxis) -> alt.Chart:
    inside = base.transform_filter("datum.at === 'inside'")
    return inside.mark_point(filled=True, opacity=1, size=80, yOffset=_MARK_DOWN).encode(x=x("value"))


def _off_axis(base: alt.Chart, x: _XAxis) -> list[alt.Chart]:
    """Triangles at the edge for values that the axis does not reach."""
    return [
        base.transform_filter(f"datum.at === '{side}'")
        .mark_point(filled=True, opacity=1, size=110, yOffset=_MARK_DOWN, shape=f"triangle-{side}", xOffset=inward)
        .encode(x=x("edge"))
        for side, inward in (("left", 7), ("right", -7))
    ]


def _ground(rows: Sequence[Row], value: float | None, x: _XAxis) -> list[alt.Chart]:
    """A line under the marks of every row, and a notch where `value` is."""
    line = _rows(rows).mark_rule(style="ground", yOffset=_MARK_DOWN).encode(x=alt.value(0), x2=alt.value("width"))
    if value is None:
        return [line]
    notched = _rows([{**row, "notch": value} for row in rows], rows)
    return [
        line,
        notched.mark_tick(style="notch", thickness=1.5, size=22, yOffset=_MARK_DOWN).encode(x=x("notch")),
    ]


def _moves(base: alt.Chart, x: _XAxis) -> alt.Chart:
    """A broad bar from where the reference stands to where the arm stands."""
    moved = base.transform_filter("datum.origin !== null && datum.value !== null")
    return moved.mark_rule(strokeWidth=7, opacity=0.28, clip=True, yOffset=_MARK_DOWN).encode(
        x=x("origin"), x2="value:Q"
    )


def _texts(rows: Sequence[Row], width: Width) -> list[alt.Chart]:
    """The arm's label at the left end of its row, its numbers at the right."""
    base = _rows([{**row, "lines": (lines := _lines(row))[0], "up": _LINE * (1 - lines[1])} for row in rows])
    taken = _LETTER * max(len(row["text"]) for row in rows) + 2 * _LETTER
    is_narrow = f"containerSize()[0] < {_needed(rows)}" if width == "container" else "false"
    limit: Any = {"expr": f"{is_narrow} ? width : max(80, width - {taken})"}
    up: Any = {"expr": f"{is_narrow} ? datum.up : 0"}
    said: Any = {"expr": f"{is_narrow} ? datum.lines : datum.arm"}
    left = base.mark_text(
        align="left", yOffset=_LABEL_UP, dy=up, fontSize=13, fontWeight=500, lineHeight=_LINE, limit=limit, text=said
    )
    right = base.mark_text(align="right", yOffset=_LABEL_UP, fontSize=12)
    return [left.encode(x=alt.value(0)), right.encode(x=alt.value("width"), text="text:N")]


def _lines(row: Row) -> tuple[list[str], int]:
    """A row's label as it is broken, and the lines that it takes with the numbers, which are in the last one."""
    label = textwrap.wrap(row["arm"], _BROKEN) or [""]
    fits = len(label[-1]) + 2 + len(row["text"]) <= _BROKEN
    return label, len(label) + (not fits)


def _needed(rows: Sequence[Row]) -> int:
    """Pixels in which every label fits beside its row's numbers."""
    return _LETTER * (max(len(row["arm"]) + len(row["text"]) for row in rows) + 2)


def _higher_where_narrow(chart: alt.LayerChart, rows: Sequence[Row]) -> alt.LayerChart:
    """With the height that its page gives it where labels are broken; a part of another picture has none."""
    if chart.width != "container":
        return chart
    height = (_ROW + _LINE * (max(_lines(row)[1] for row in rows) - 1)) * len(rows)
    return chart.properties(usermeta={"narrow": {"below": _needed(rows), "height": height}})
