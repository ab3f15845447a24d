"""The three pictures of a study as Altair charts: levels, differences, learning curves.

Rows carry their labels inside the picture, above the marks, so that long names cost no width on a phone.
Colours come from the config that palette.py makes, so one chart serves light and dark.
"""

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from archlab.report.palette import SHAPES, VERDICTS
from archlab.report.ranges import curve_range, padded, without_outliers
from archlab.report.rows import (
    Row,
    curve_rows,
    difference_rows,
    diverged_rows,
    ends,
    labels,
    level_rows,
    place_on_axis,
    seed_rows,
)
from archlab.study.record import StudySummary

_ROW = 46
_LABEL_UP, _MARK_DOWN = -10, 9
"""Pixels: an arm's row, its label above the middle, its marks below."""

_VALUE_ROOM = 160
"""Pixels that the numbers at a row's right end may take from its label."""

_Width = int | Literal["container"]
"""Pixels, or as wide as the place on the page."""


def levels(summary: StudySummary, width: _Width = "container") -> alt.LayerChart:
    """Bits per byte of every arm: a tick per seed, their mean, and the 95% interval of the mean."""
    rows, seeds = level_rows(summary), seed_rows(summary)
    near = without_outliers([row["value"] for row in rows if row["value"] is not None])
    inside = {row["arm"] for row in rows if row["value"] in near}
    shown = ends(rows, near) + [seed["value"] for seed in seeds if seed["arm"] in inside]
    low, high = padded(min(shown), max(shown)) if shown else (0.0, 1.0)
    place_on_axis(rows, low, high)
    x = _XAxis(low, high, "bits per byte on held-out text (left is better)")
    named = list(labels(summary).values())
    colour = alt.Color("arm:N", scale=alt.Scale(domain=named, range="category"), legend=None)
    base = _rows(rows).encode(color=colour, tooltip=_tooltip("arm", "text"))
    ticks = _rows([seed for seed in seeds if low <= seed["value"] <= high], rows).encode(color=colour, x=x("value"))
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
    return _layered(
        layers,
        width,
        _ROW * len(rows),
        "Bits per byte of every arm, with the 95% interval of its mean over seeds",
    )


def differences(summary: StudySummary, width: _Width = "container", legend: bool = False) -> alt.LayerChart | None:
    """Every arm minus its reference, with its interval; None where nothing was compared."""
    if not any(arm.comparison for arm in summary.arms):
        return None
    rows = difference_rows(summary)
    near = without_outliers([row["value"] for row in rows if row["value"] is not None])
    shown = [0.0, *ends(rows, near)]
    low, high = padded(min(shown), max(shown))
    place_on_axis(rows, low, high)
    x = _XAxis(low, high, "difference in bits per byte (left is better)")
    found = [verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)]
    key = alt.Legend(title=None, orient="bottom", direction="horizontal", values=found) if legend else None
    colour = alt.Color("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range="ordinal"), legend=key)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=list(SHAPES)), legend=key)
    base = _rows(rows).encode(color=colour, tooltip=_tooltip("arm", "verdict", "text", "detectable"))
    layers = [
        *_ground(rows, 0.0, x),
        *_intervals(base, x),
        _dots(base, x).encode(shape=shape),
        *_off_axis(base, x),
        *_texts(rows, width),
    ]
    return _layered(
        layers,
        width,
        _ROW * len(rows),
        "Paired difference of every arm to its reference, with its interval",
    )


def curves(summary: StudySummary, width: _Width = "container", legend: bool = False) -> alt.LayerChart | None:
    """Held-out bits per byte over training tokens: mean over the seeds, in a band from the best to the worst.

    A diverged run is a dashed line that ends in a cross. The page sets `chosen` to single out an arm.
    """
    shown = curve_range(summary)
    if shown is None:
        return None
    means, gone = curve_rows(summary), diverged_rows(summary, shown[1])
    visible = [row["tokens"] for row in means if row["mean"] <= shown[1]] or [row["tokens"] for row in gone]
    first, last = min(visible), max(visible)
    means, gone = ([row for row in rows if row["tokens"] >= first] for rows in (means, gone))
    x = alt.X("tokens:Q").scale(type="log" if 0 < 8 * first <= last else "linear", nice=False, domain=[first, last])
    x = x.axis(title="training tokens", format="~s", grid=False, tickCount=5, labelOverlap=True)

    def y(field: str) -> alt.Y:
        axis = alt.Axis(title="bits per byte on held-out text", tickCount=6)
        return alt.Y(f"{field}:Q", scale=alt.Scale(domain=list(shown), nice=False, zero=False), axis=axis)

    key = (
        alt.Legend(title=None, orient="right", labelLimit=280, symbolType="stroke", symbolOpacity=1) if legend else None
    )
    named = list(labels(summary).values())
    colour = alt.Color("arm:N", scale=alt.Scale(domain=named, range="category"), legend=key)
    chosen = alt.when("chosen === null || datum.arm === chosen")
    base = alt.Chart(_data(means)).encode(x=x, color=colour, tooltip=_tooltip("arm", "text"))
    band, line = base.mark_area(clip=True), base.mark_line(clip=True, strokeWidth=2)
    layers: list[alt.Chart] = [
        band.encode(y=y("low"), y2="high:Q", opacity=chosen.then(alt.value(0.2)).otherwise(alt.value(0.03))),
        line.encode(y=y("mean"), opacity=chosen.then(alt.value(1)).otherwise(alt.value(0.12))),
        base.mark_point(clip=True, size=90, opacity=0, filled=True).encode(y=y("mean")),
    ]
    if gone:
        base = alt.Chart(_data(gone)).encode(x=x, color=colour, detail="seed:N", tooltip=_tooltip("arm", "text"))
        base = base.encode(opacity=chosen.then(alt.value(0.9)).otherwise(alt.value(0.12)))
        end = base.transform_filter("datum.last").mark_point(shape="cross", angle=45, size=110, filled=True)
        layers += [
            base.mark_line(clip=True, strokeWidth=1.5, strokeDash=[4, 3]).encode(y=y("mean")),
            end.encode(y=y("held")),
        ]
    description = "Held-out bits per byte over training tokens, one line per arm, with a band over its seeds"
    return _layered(layers, width, 360, description).add_params(alt.param(name="chosen", value=None))


# --- parts ------------------------------------------------------------------------------------------


class _XAxis:
    """`x("low")`: a field on the one horizontal axis that all layers of a chart share."""

    def __init__(self, low: float, high: float, title: str) -> None:
        self._scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        self._axis = alt.Axis(title=title, tickCount=5, format="~g", grid=False)

    def __call__(self, field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=self._scale, axis=self._axis)


def _data(rows: Sequence[Row]) -> alt.InlineData:
    return alt.InlineData(values=list(rows))


def _tooltip(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N") for field in fields]


def _rows(rows: Sequence[Row], order: Sequence[Row] | None = None) -> alt.Chart:
    """A chart with one row of its own per arm, in the study's order."""
    named = [row["arm"] for row in order or rows]
    return alt.Chart(_data(rows)).encode(y=alt.Y("arm:N", sort=named, axis=None, scale=alt.Scale(domain=named)))


def _intervals(base: alt.Chart, x: _XAxis) -> list[alt.Chart]:
    inside = base.transform_filter("datum.at === 'inside' && datum.low !== null")
    return [inside.mark_rule(strokeWidth=2, yOffset=_MARK_DOWN, clip=True, opacity=0.8).encode(x=x("low"), x2="high:Q")]


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


def _texts(rows: Sequence[Row], width: _Width) -> list[alt.Chart]:
    """The arm's label at the left end of its row, its numbers at the right."""
    room: Any = {"expr": f"max(80, width - {_VALUE_ROOM})"} if width == "container" else width - _VALUE_ROOM
    left = _rows(rows).mark_text(align="left", yOffset=_LABEL_UP, fontSize=13, fontWeight=500, limit=room)
    right = _rows(rows).mark_text(align="right", yOffset=_LABEL_UP, fontSize=12)
    return [left.encode(x=alt.value(0), text="arm:N"), right.encode(x=alt.value("width"), text="text:N")]


def _layered(layers: Sequence[alt.Chart], width: _Width, height: int, description: str) -> alt.LayerChart:
    return alt.LayerChart(layer=list(layers), width=width, height=height, description=description)
