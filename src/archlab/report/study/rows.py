"""A study's summary as the rows that the charts draw; arms go by their labels."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from archlab.study.formatting import amount, difference, diverged, interval, verdict, with_interval
from archlab.study.outcome_schema import Unit
from archlab.study.record import ArmSummary, Comparison, StudySummary
from archlab.study.stats import estimate, independent

Row = dict[str, Any]


def labels(summary: StudySummary) -> dict[str, str]:
    """Arm -> its label; where two arms share one, their names tell them apart."""
    every = [arm.label for arm in summary.arms]
    return {arm.name: arm.label if every.count(arm.label) == 1 else f"{arm.label} ({arm.name})" for arm in summary.arms}


def level_rows(summary: StudySummary) -> list[Row]:
    """Per arm: mean, the 95% interval of the mean, and the mean of its reference as `origin`."""
    means = {arm.name: arm.mean for arm in summary.arms}
    return [
        _level(arm, label, means[arm.comparison.reference] if arm.comparison else None, summary)
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
    ]


def _level(arm: ArmSummary, label: str, origin: float | None, summary: StudySummary) -> Row:
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


def seed_rows(summary: StudySummary) -> list[Row]:
    """Per value: its arm, and its seed or round."""
    return [
        {"arm": label, "seed": seed, "value": loss}
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
        for seed, loss in arm.values.items()
        if loss is not None
    ]


def aligned(seeds: Sequence[Row]) -> list[Row]:
    """The same rows of seeds, each `loss` without what its seed does to all points alike: how far the seed is from the
    mean of a point, on average over the points (an `arm` and a `value`) that all seeds have."""
    points: dict[tuple[Any, Any], dict[int, float]] = {}
    for row in seeds:
        if row["loss"] is not None:
            points.setdefault((row["arm"], row["value"]), {})[row["seed"]] = row["loss"]
    whole = [point for point in points.values() if len(point) == len({row["seed"] for row in seeds})]
    away = {row["seed"]: fmean(point[row["seed"]] - fmean(point.values()) for point in whole) for row in seeds if whole}
    return [row if row["loss"] is None else {**row, "loss": row["loss"] - away.get(row["seed"], 0.0)} for row in seeds]


def difference_rows(summary: StudySummary) -> list[Row]:
    """Per arm: the difference, its interval and its verdict; an arm without a reference has an empty row."""
    named = labels(summary)
    shown = {
        arm.name: f"{named[arm.name]} vs {named[arm.comparison.reference]}"
        if arm.comparison and summary.against != "base"
        else named[arm.name]
        for arm in summary.arms
    }
    return [_difference(arm, shown[arm.name], summary.outcome.unit) for arm in summary.arms]


def _difference(arm: ArmSummary, label: str, unit: Unit) -> Row:
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


def ends(rows: Sequence[Row], near: Sequence[float]) -> list[float]:
    """Every value and interval end of the rows whose value is one of `near`."""
    found = [row[end] for row in rows if row["value"] in near for end in ("value", "low", "high")]
    return [end for end in found if end is not None]


def place_on_axis(rows: Sequence[Row], low: float, high: float) -> None:
    """Add where each row is drawn: `inside` the axis, at its `left` or `right` edge if beyond it, or `nowhere`."""
    for row in rows:
        value = row["value"]
        row["at"] = "nowhere" if value is None else "left" if value < low else "right" if value > high else "inside"
        row["edge"] = None if value is None else min(max(value, low), high)
