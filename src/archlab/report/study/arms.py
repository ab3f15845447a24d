"""Charts with one row per arm: its outcome, and its difference from the reference.

Colors come from the theme in `charts.palette`, so that the same chart is used in light and dark mode.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import altair as alt

from archlab.report.charts.axes import axis, axis_title, padded, without_outliers
from archlab.report.charts.comparisons import (
    MARK_DOWN,
    ROW,
    XAxis,
    by_row,
    caps,
    dots,
    ground,
    intervals,
    off_axis,
    place_on_axis,
    taller_if_narrow,
    texts,
)
from archlab.report.charts.marks import ChartRow, Width, color, layered, tooltip
from archlab.report.charts.palette import SHAPES, VERDICTS, Mode, colors
from archlab.study.formatting import amount, difference, diverged, interval, verdict, with_interval
from archlab.study.outcomes.schema import Unit
from archlab.study.record import ArmSummary, Comparison, Heading, StudySummary
from archlab.study.stats import estimate, independent

DIFFERENCES_SHOW = "Differences paired by seed. The line is the interval of the test for a difference."
"""Caption of the chart that `differences` returns."""


def levels_show(summary: StudySummary) -> str:
    """Return the caption of the chart that `levels` returns."""
    reference = reference_of(summary)
    return f"Each tick is a seed. The dot is the mean, the line its 95% interval. The thick bar starts at {reference}."


def reference_of(summary: StudySummary) -> str:
    """Return the name of the reference arm, or a description if there are several references."""
    if summary.against == "previous":
        return "the previous step"
    if summary.against == "base" and not summary.sizes:
        return labels(summary)[summary.arms[0].name]
    return "its reference"


def levels_are_cut(summary: StudySummary) -> bool:
    """Return whether the value of any arm is beyond the axis of its chart. In this case, a second chart shows all
    arms."""
    return _is_cut(level_rows(summary))


def differences_are_cut(summary: StudySummary) -> bool:
    """Return whether any difference is beyond the axis of its chart. In this case, a second chart shows all
    differences."""
    return _is_cut(difference_rows(summary))


def _is_cut(rows: Sequence[ChartRow]) -> bool:
    return len(_near(rows, whole=False)) < len(_values(rows))


def levels(summary: StudySummary, width: Width = "container", *, whole: bool = False) -> alt.LayerChart:
    """Return a chart of the outcome of every arm: one tick per seed, the mean over the seeds, and the 95% confidence
    interval of the mean.

    If `whole` is True, the axis covers every arm. Otherwise, an arm that is far from the others is drawn as a triangle
    at the edge.
    """
    rows, seeds = level_rows(summary), seed_rows(summary)
    near = _near(rows, whole)
    inside = {row["arm"] for row in rows if row["value"] in near}
    shown = ends(rows, near) + [seed["value"] for seed in seeds if seed["arm"] in inside]
    x = _x_axis(shown or [0.0, 1.0], axis_title(summary.outcome), summary.outcome.unit)
    place_on_axis(rows, x)
    arm_labels = list(labels(summary).values())
    base = by_row(rows).encode(color=color(arm_labels), tooltip=tooltip("arm", "text"))
    ticks = by_row([seed for seed in seeds if x.low <= seed["value"] <= x.high], rows).encode(
        color=color(arm_labels), x=x("value")
    )
    start = summary.arms[0].mean if summary.against == "base" and summary.arms[0].mean in near else None
    layers = [
        *ground(rows, start, x),
        _moves(base, x),
        *intervals(base, x),
        ticks.mark_tick(thickness=1.5, size=13, opacity=0.6, yOffset=MARK_DOWN),
        dots(base, x),
        *off_axis(base, x),
        *texts(rows, width),
    ]
    description = f"{summary.outcome.title} of every arm, with the 95% confidence interval of the mean"
    return taller_if_narrow(layered(layers, description, ROW * len(rows), width), rows)


def differences(
    summary: StudySummary,
    width: Width = "container",
    *,
    legend: bool = False,
    whole: bool = False,
    compared_only: bool = False,
) -> alt.LayerChart | None:
    """Return a chart of the difference between every arm and its reference, with its interval. Return None if nothing
    was compared.

    `whole` has the same meaning as for `levels`. If `compared_only` is True, arms without a reference have no row.
    """
    if not any(arm.comparison for arm in summary.arms):
        return None
    rows = [row for row in difference_rows(summary) if not compared_only or row["verdict"]]
    return forest(rows, summary.outcome, width, legend=legend, whole=whole)


def forest(
    rows: Sequence[ChartRow], outcome: Heading, width: Width = "container", *, legend: bool = False, whole: bool = False
) -> alt.LayerChart:
    """Return a chart of differences with their intervals. `rows` holds rows from `comparison_row`."""
    near = _near(rows, whole)
    shown = [0.0, *ends(rows, near)]
    x = _x_axis(shown, axis_title(outcome, "difference"), outcome.unit, of_differences=True)
    place_on_axis(rows, x)
    verdicts_shown = [verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)]
    verdict_legend = (
        alt.Legend(title=None, orient="bottom", direction="horizontal", values=verdicts_shown) if legend else None
    )
    color = alt.Color("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range="ordinal"), legend=verdict_legend)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=list(SHAPES)), legend=verdict_legend)
    base = by_row(rows).encode(color=color, tooltip=tooltip("arm", "verdict", "text", "detectable"))
    layers = [
        *ground(rows, 0.0, x),
        *intervals(base, x),
        *caps(base, x),
        dots(base, x).encode(shape=shape),
        *off_axis(base, x),
        *texts(rows, width),
    ]
    description = "Paired difference of every arm from its reference, with its interval"
    return taller_if_narrow(layered(layers, description, ROW * len(rows), width), rows)


def _values(rows: Sequence[ChartRow]) -> list[float]:
    return [row["value"] for row in rows if row["value"] is not None]


def _near(rows: Sequence[ChartRow], whole: bool) -> list[float]:
    return _values(rows) if whole else without_outliers(_values(rows))


def _x_axis(shown: Sequence[float], title: str, unit: Unit, of_differences: bool = False) -> XAxis:
    low, high = padded(min(shown), max(shown))
    most = 5 if max(shown) > min(shown) else 1
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    return XAxis(low, high, scale, axis(title, unit, low, high, most=most, grid=False, of_differences=of_differences))


def _moves(base: alt.Chart, x: XAxis) -> alt.Chart:
    moved = base.transform_filter("datum.origin !== null && datum.value !== null")
    return moved.mark_rule(strokeWidth=7, opacity=0.28, clip=True, yOffset=MARK_DOWN).encode(
        x=x("origin"), x2="value:Q"
    )


def labels(summary: StudySummary) -> dict[str, str]:
    """Map the name of each arm to its label. If several arms have the same label, each label is followed by the arm's
    name."""
    all_labels = [arm.label for arm in summary.arms]
    return {
        arm.name: arm.label if all_labels.count(arm.label) == 1 else f"{arm.label} ({arm.name})" for arm in summary.arms
    }


def seed_effects(points: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the effect of each seed on all points: the seed's value minus the point's mean, averaged over points. A
    point holds the value of each seed, for example of one arm.

    Only points with a value for every seed are used. The result is empty with fewer than two such points, because an
    effect on all points shows only in two or more.
    """
    points = list(points)
    seeds = sorted({seed for point in points for seed in point})
    complete = [point for point in points if len(point) == len(seeds)]
    if len(complete) < 2:
        return {}
    return {seed: fmean(point[seed] - fmean(point.values()) for point in complete) for seed in seeds}


def level_rows(summary: StudySummary) -> list[ChartRow]:
    """Return one row per arm: its mean, the 95% confidence interval of the mean, and the mean of its reference as
    `origin`."""
    means = {arm.name: arm.mean for arm in summary.arms}
    return [
        _level(arm, label, means[arm.comparison.reference] if arm.comparison else None, summary)
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
    ]


def _level(arm: ArmSummary, label: str, origin: float | None, summary: StudySummary) -> ChartRow:
    interval_of_mean, unit = estimate(independent(arm.values, summary.shared_folds)), summary.outcome.unit
    return {
        "arm": label,
        "value": arm.mean,
        "origin": origin,
        "low": interval_of_mean.low if interval_of_mean else None,
        "high": interval_of_mean.high if interval_of_mean else None,
        "text": diverged(arm)
        if arm.mean is None
        else " · ".join(filter(None, [amount(arm.mean, unit), diverged(arm)])),
    }


def seed_rows(summary: StudySummary) -> list[ChartRow]:
    """Return one row per measured value, with its arm and its seed or round of timing."""
    return [
        {"arm": label, "seed": seed, "value": loss}
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
        for seed, loss in arm.values.items()
        if loss is not None
    ]


def difference_rows(summary: StudySummary) -> list[ChartRow]:
    """Return one row per arm: its difference from the reference, the interval and the verdict. These fields are empty
    if the arm has no reference."""
    arm_labels = labels(summary)
    shown = {
        arm.name: f"{arm_labels[arm.name]} vs {arm_labels[arm.comparison.reference]}"
        if arm.comparison and summary.against != "base"
        else arm_labels[arm.name]
        for arm in summary.arms
    }
    return [_difference(arm, shown[arm.name], summary.outcome.unit) for arm in summary.arms]


def _difference(arm: ArmSummary, label: str, unit: Unit) -> ChartRow:
    c = arm.comparison
    if c is None:
        return {
            "arm": label,
            "value": None,
            "low": None,
            "high": None,
            "verdict": None,
            "text": verdict(arm),
            "detectable": "",
        }
    row = comparison_row(label, c, unit)
    return row | {"text": diverged(arm)} if c.verdict == "diverged" else row


def comparison_row(label: str, comparison: Comparison, unit: Unit) -> ChartRow:
    """Return the chart row of a comparison: its difference, interval and verdict."""
    value, low, high = comparison.difference, comparison.low, comparison.high
    return {
        "arm": label,
        "value": value,
        "low": low,
        "high": high,
        "verdict": comparison.verdict,
        "text": comparison.verdict if value is None else with_interval(value, low, high, unit),
        "detectable": _detectable(comparison, unit),
    }


def _detectable(comparison: Comparison, unit: Unit) -> str:
    if comparison.smallest_effect is None:
        return ""
    ends = interval(comparison.smallest_effect_low, comparison.smallest_effect_high, unit)
    return f"{difference(comparison.smallest_effect, unit)} {ends}"


def ends(rows: Sequence[ChartRow], near: Sequence[float]) -> list[float]:
    """Return the values and interval ends of all rows whose value is in `near`."""
    numbers = [row[end] for row in rows if row["value"] in near for end in ("value", "low", "high")]
    return [end for end in numbers if end is not None]


def arm_colors(summary: StudySummary, mode: Mode) -> list[str]:
    return colors(len(summary.arms), mode, is_ladder=summary.against == "previous")
