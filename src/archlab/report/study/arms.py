"""Pictures with a row per arm: where each arm stands, and how far it is from its reference.

Colors come from the theme of `charts.palette`, so one chart serves light and dark."""

from collections.abc import Sequence

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
    higher_where_narrow,
    intervals,
    off_axis,
    place_on_axis,
    texts,
)
from archlab.report.charts.marks import ChartRow, Width, color, layered, tooltip
from archlab.report.charts.palette import SHAPES, VERDICTS, Mode, colors
from archlab.study.formatting import amount, difference, diverged, interval, verdict, with_interval
from archlab.study.outcome_schema import Unit
from archlab.study.record import ArmSummary, Comparison, StudySummary
from archlab.study.stats import estimate, independent

DIFFERENCES_SHOW = "Paired by seed, with the interval of the difference, at the level at which the verdict was reached."
"""Caption of `differences`."""


def levels_show(summary: StudySummary) -> str:
    """Return the caption of `levels`."""
    reference = reference_of(summary)
    return f"Ticks are seeds, the dot their mean, the line its 95% interval; the broad bar comes from {reference}."


def reference_of(summary: StudySummary) -> str:
    """Return the name of the arm that the others are compared with, or words for it if there are several."""
    if summary.against == "previous":
        return "the step before"
    if summary.against == "base" and not summary.sizes:
        return labels(summary)[summary.arms[0].name]
    return "the arm that it is compared with"


def levels_are_cut(summary: StudySummary) -> bool:
    """Whether an arm stands beyond the axis of its picture: the one with `whole` then shows it, interval and all."""
    return _is_cut(level_rows(summary))


def differences_are_cut(summary: StudySummary) -> bool:
    """As `levels_are_cut`, of the differences."""
    return _is_cut(difference_rows(summary))


def _is_cut(rows: Sequence[ChartRow]) -> bool:
    return len(_near(rows, whole=False)) < len(_values(rows))


def levels(summary: StudySummary, width: Width = "container", *, whole: bool = False) -> alt.LayerChart:
    """The outcome of every arm: a tick per seed, their mean, and the 95% interval of the mean.

    An arm that is far from the others is a triangle at the edge, unless the `whole` range is wanted.
    """
    rows, seeds = level_rows(summary), seed_rows(summary)
    near = _near(rows, whole)
    inside = {row["arm"] for row in rows if row["value"] in near}
    shown = ends(rows, near) + [seed["value"] for seed in seeds if seed["arm"] in inside]
    x = _x_axis(shown or [0.0, 1.0], axis_title(summary.outcome), summary.outcome.unit)
    place_on_axis(rows, x)
    named = list(labels(summary).values())
    base = by_row(rows).encode(color=color(named), tooltip=tooltip("arm", "text"))
    ticks = by_row([seed for seed in seeds if x.low <= seed["value"] <= x.high], rows).encode(
        color=color(named), x=x("value")
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
    description = f"{summary.outcome.title} of every arm, with the 95% interval of its mean"
    return higher_where_narrow(layered(layers, description, ROW * len(rows), width), rows)


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
    x = _x_axis(shown, axis_title(summary.outcome, "difference"), summary.outcome.unit, of_differences=True)
    place_on_axis(rows, x)
    found = [verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)]
    key = alt.Legend(title=None, orient="bottom", direction="horizontal", values=found) if legend else None
    color = alt.Color("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range="ordinal"), legend=key)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=list(SHAPES)), legend=key)
    base = by_row(rows).encode(color=color, tooltip=tooltip("arm", "verdict", "text", "detectable"))
    layers = [
        *ground(rows, 0.0, x),
        *intervals(base, x),
        *caps(base, x),
        dots(base, x).encode(shape=shape),
        *off_axis(base, x),
        *texts(rows, width),
    ]
    description = "Paired difference of every arm to its reference, with its interval"
    return higher_where_narrow(layered(layers, description, ROW * len(rows), width), rows)


def _values(rows: Sequence[ChartRow]) -> list[float]:
    return [row["value"] for row in rows if row["value"] is not None]


def _near(rows: Sequence[ChartRow], whole: bool) -> list[float]:
    """The values that the axis must reach."""
    return _values(rows) if whole else without_outliers(_values(rows))


def _x_axis(shown: Sequence[float], title: str, unit: Unit, of_differences: bool = False) -> XAxis:
    low, high = padded(min(shown), max(shown))
    most = 5 if max(shown) > min(shown) else 1
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    return XAxis(low, high, scale, axis(title, unit, low, high, most=most, grid=False, of_differences=of_differences))


def _moves(base: alt.Chart, x: XAxis) -> alt.Chart:
    """A broad bar from where the reference stands to where the arm stands."""
    moved = base.transform_filter("datum.origin !== null && datum.value !== null")
    return moved.mark_rule(strokeWidth=7, opacity=0.28, clip=True, yOffset=MARK_DOWN).encode(
        x=x("origin"), x2="value:Q"
    )


def labels(summary: StudySummary) -> dict[str, str]:
    """Arm -> its label; where two arms share one, their names tell them apart."""
    every = [arm.label for arm in summary.arms]
    return {arm.name: arm.label if every.count(arm.label) == 1 else f"{arm.label} ({arm.name})" for arm in summary.arms}


def level_rows(summary: StudySummary) -> list[ChartRow]:
    """Per arm: mean, the 95% interval of the mean, and the mean of its reference as `origin`."""
    means = {arm.name: arm.mean for arm in summary.arms}
    return [
        _level(arm, label, means[arm.comparison.reference] if arm.comparison else None, summary)
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
    ]


def _level(arm: ArmSummary, label: str, origin: float | None, summary: StudySummary) -> ChartRow:
    found, unit = estimate(independent(arm.values, summary.shared_folds)), summary.outcome.unit
    return {
        "arm": label,
        "value": arm.mean,
        "origin": origin,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "text": diverged(arm)
        if arm.mean is None
        else " · ".join(filter(None, [amount(arm.mean, unit), diverged(arm)])),
    }


def seed_rows(summary: StudySummary) -> list[ChartRow]:
    """Per value: its arm, and its seed or round."""
    return [
        {"arm": label, "seed": seed, "value": loss}
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
        for seed, loss in arm.values.items()
        if loss is not None
    ]


def difference_rows(summary: StudySummary) -> list[ChartRow]:
    """Per arm: the difference, its interval and its verdict; an arm without a reference has an empty row."""
    named = labels(summary)
    shown = {
        arm.name: f"{named[arm.name]} vs {named[arm.comparison.reference]}"
        if arm.comparison and summary.against != "base"
        else named[arm.name]
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
    return {
        "arm": label,
        "value": c.difference,
        "low": c.low,
        "high": c.high,
        "verdict": c.verdict,
        "text": _difference_text(arm, c, unit),
        "detectable": _detectable(c, unit),
    }


def _difference_text(arm: ArmSummary, comparison: Comparison, unit: Unit) -> str:
    if comparison.verdict == "diverged":
        return diverged(arm)
    if comparison.difference is None:
        return comparison.verdict
    return with_interval(comparison.difference, comparison.low, comparison.high, unit)


def _detectable(comparison: Comparison, unit: Unit) -> str:
    if comparison.smallest_effect is None:
        return ""
    ends = interval(comparison.smallest_effect_low, comparison.smallest_effect_high, unit)
    return f"{difference(comparison.smallest_effect, unit)} {ends}"


def ends(rows: Sequence[ChartRow], near: Sequence[float]) -> list[float]:
    """Every value and interval end of the rows whose value is one of `near`."""
    found = [row[end] for row in rows if row["value"] in near for end in ("value", "low", "high")]
    return [end for end in found if end is not None]


def arm_colors(summary: StudySummary, mode: Mode) -> list[str]:
    """Return one color per arm, in the study's order."""
    return colors(len(summary.arms), mode, is_ladder=summary.against == "previous")
