"""Chart of the differences of a study's arms over model size."""

from typing import Any

import altair as alt

from archlab.pricing.units import count
from archlab.report.charts.axes import LARGE, axis, axis_title, padded
from archlab.report.charts.marks import DASHED, chart_of, color, layered, tooltip
from archlab.study.formatting import with_interval
from archlab.study.record import SizeTrend, StudySummary

_HEIGHT = 300
_SPREAD = 0.012
"""Horizontal distance between the points of two arms at the same model size, as a fraction of this size. It keeps their
intervals from overlapping."""


def over_sizes(summary: StudySummary) -> alt.LayerChart | None:
    """Return a chart of each arm's difference from its reference over model size, with intervals and fitted lines.

    The axis of model sizes is logarithmic. Return None if the study has only one size.
    """
    if not summary.sizes:
        return None
    names = [trend.label for trend in summary.sizes]
    # Only the requested sizes have ticks.
    ticks = alt.Axis(values=summary.asked_sizes, labelExpr=LARGE, title="parameters, logarithmic axis", grid=False)
    x = alt.X("size:Q", scale=alt.Scale(type="log", nice=False, padding=20), axis=ticks)
    title = axis_title(summary.outcome, "difference").partition(" (")[0]
    rows, ends = size_rows(summary), line_rows(summary)
    shown = [row[field] for row in (*rows, *ends) for field in ("low", "value", "high") if row.get(field) is not None]
    low, high = padded(min([0.0, *shown]), max([0.0, *shown]))
    scale = alt.Scale(domain=[low, high], nice=False)
    y = alt.Y("value:Q", scale=scale, axis=axis(title, summary.outcome.unit, low, high, of_differences=True))
    points = chart_of(rows).encode(x=x, color=color(names), tooltip=tooltip("arm", "text", "verdict"))
    lines = chart_of(ends).mark_line(strokeDash=DASHED, opacity=0.7)
    layers = [
        chart_of([{"value": 0}]).mark_rule(style="ground").encode(y=y),
        lines.encode(x=x, y=y, color=color(names)),
        points.transform_filter("datum.low !== null").mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        points.transform_filter("datum.value !== null").mark_point(filled=True, size=70, opacity=1).encode(y=y),
    ]
    description = "Difference of every arm from its reference over the size of the models, with its interval"
    return layered(layers, description, _HEIGHT)


def size_rows(summary: StudySummary) -> list[dict[str, Any]]:
    """Return one row per arm and model size: the difference and its interval. Points of the same size are moved
    slightly apart."""
    return [
        row | {"size": row["size"] * (1 + _SPREAD * i)}
        for i, trend in enumerate(summary.sizes)
        for row in _points(trend, summary)
    ]


def _points(trend: SizeTrend, summary: StudySummary) -> list[dict[str, Any]]:
    comparisons = {arm.name: arm.comparison for arm in summary.arms}
    unit = summary.outcome.unit
    rows = []
    for size, name in zip(trend.sizes, trend.arms, strict=True):
        c = comparisons[name]
        value = c.difference if c else None
        text = "" if c is None or value is None else with_interval(value, c.low, c.high, unit)
        rows.append(
            {
                "arm": trend.label,
                "size": size,
                "value": value,
                "low": c.low if c else None,
                "high": c.high if c else None,
                "verdict": c.verdict if c else "",
                "text": f"{text} at {count(size)} parameters",
            }
        )
    return rows


def line_rows(summary: StudySummary) -> list[dict[str, Any]]:
    """Return two rows per arm: the two ends of its fitted line."""
    return [
        {"arm": trend.label, "size": size * (1 + _SPREAD * i), "value": value}
        for i, trend in enumerate(summary.sizes)
        for size, value in zip((trend.sizes[0], trend.sizes[-1]), trend.line or (), strict=False)
    ]
