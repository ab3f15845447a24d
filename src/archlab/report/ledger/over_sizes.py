"""Chart of the gains from a choice over model sizes: archlab's runs beside published numbers, on one axis."""

import altair as alt

from archlab.evidence.over_sizes import SizedGain, SizedResult
from archlab.pricing.units import count
from archlab.report.charts.axes import LARGE, axis, logarithmic, padded
from archlab.report.charts.marks import ChartRow, Width, chart_of, color, layered, tooltip
from archlab.report.ledger import words_over_sizes

_HEIGHT = 260
_KINDS = ("archlab", "published")


def gains(result: SizedResult, width: Width = "container") -> alt.LayerChart:
    """Return the chart. Published numbers are hollow marks, because they have no interval."""
    rows = [
        *(_row(gain, _KINDS[0]) for gain in result.measured),
        *(_row(gain, _KINDS[1]) for gain in result.published),
    ]
    sizes = [row["parameters"] for row in rows]
    ticks = alt.Axis(
        values=logarithmic(min(sizes), max(sizes)) if result.published else sizes,  # a few sizes have their own ticks
        labelExpr=LARGE,
        labelOverlap="greedy",
        title="parameters, logarithmic axis",
        grid=False,
    )
    x = alt.X("parameters:Q", scale=alt.Scale(type="log", nice=False, padding=20), axis=ticks)
    ends = [row[field] for row in rows for field in ("low", "value", "high") if row[field] is not None]
    low, high = padded(min([0.0, *ends]), max([0.0, *ends]))
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(domain=[low, high], nice=False),
        axis=axis("gain, % of the value without the choice", "share", low, high),
    )
    kinds = color(_KINDS, "kind")
    points = chart_of(rows).encode(x=x, color=kinds, tooltip=tooltip("arm", "text", "result"))
    known = points.transform_filter("datum.value !== null")
    layers = [
        chart_of([{"value": 0}]).mark_rule(style="ground").encode(y=y),
        points.transform_filter("datum.low !== null").mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        known.transform_filter("datum.kind == 'archlab'").mark_point(filled=True, size=70, opacity=1).encode(y=y),
        known.transform_filter("datum.kind == 'published'").mark_point(shape="diamond", size=70, opacity=1).encode(y=y),
    ]
    return layered(layers, f"Gain over model sizes, {result.expected.of}", _HEIGHT, width)


def _row(gain: SizedGain, kind: str) -> ChartRow:
    _, _, text, verdict = words_over_sizes.row(gain)
    return {
        "arm": gain.source,
        "kind": kind,
        "parameters": gain.parameters,
        "value": gain.gain,
        "low": gain.low,
        "high": gain.high,
        "text": f"{text} at {count(gain.parameters)} parameters",
        "result": verdict,
    }
