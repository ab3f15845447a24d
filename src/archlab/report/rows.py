"""A study's summary as the rows that the charts draw; arms go by their labels."""

from collections.abc import Iterator, Sequence
from typing import Any

from archlab.config.outcomes import Unit
from archlab.cost.units import count
from archlab.study.formatting import amount, diverged, interval, span, verdict
from archlab.study.record import ArmSummary, Comparison, StudySummary
from archlab.study.stats import estimate

Row = dict[str, Any]


def labels(summary: StudySummary) -> dict[str, str]:
    """Arm -> its label; where two arms share one, their names tell them apart."""
    every = [arm.label for arm in summary.arms]
    return {arm.name: arm.label if every.count(arm.label) == 1 else f"{arm.label} ({arm.name})" for arm in summary.arms}


def level_rows(summary: StudySummary) -> list[Row]:
    """Per arm: mean, the 95% interval of the mean, and the mean of its reference as `origin`."""
    means = {arm.name: arm.mean for arm in summary.arms}
    return [
        _level(arm, label, means[arm.comparison.reference] if arm.comparison else None, summary.outcome.unit)
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
    ]


def _level(arm: ArmSummary, label: str, origin: float | None, unit: Unit) -> Row:
    found = estimate([loss for loss in arm.values.values() if loss is not None])
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
    return f"{amount(comparison.difference, unit)} {interval(comparison.low, comparison.high, unit)}".strip()


def _detectable(comparison: Comparison, unit: Unit) -> str:
    if comparison.smallest_effect is None:
        return ""
    ends = interval(comparison.smallest_effect_low, comparison.smallest_effect_high, unit)
    return f"{amount(comparison.smallest_effect, unit)} {ends}"


def curve_rows(summary: StudySummary) -> list[Row]:
    """Per arm and training length: mean, lowest and highest over the seeds that finished."""
    return [
        row
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
        for row in _curve(arm, label, summary.evaluated)
    ]


def _curve(arm: ArmSummary, label: str, unit: Unit) -> Iterator[Row]:
    """Only where all seeds were evaluated: `eval_every` may change between one seed and the next."""
    at: dict[int, list[float]] = {}
    for curve in arm.curves:
        if curve.seed not in arm.diverged:
            for tokens, loss in zip(curve.tokens, curve.values, strict=True):
                at.setdefault(tokens, []).append(loss)
    finished = max(map(len, at.values()), default=0)
    shared = {tokens: losses for tokens, losses in at.items() if len(losses) == finished}
    for tokens, losses in sorted(shared.items()):
        mean, low, high = sum(losses) / len(losses), min(losses), max(losses)
        seeds = span(amount(low, unit), amount(high, unit))
        yield {
            "arm": label,
            "tokens": tokens,
            "mean": mean,
            "low": low,
            "high": high,
            "text": f"{amount(mean, unit)} at {count(tokens)} tokens, seeds {seeds}",
        }


def diverged_rows(summary: StudySummary, top: float) -> list[Row]:
    """The curves of the runs that diverged; the last point is marked, and held below the picture's `top`."""
    named = labels(summary)
    return [
        {
            "arm": named[arm.name],
            "seed": curve.seed,
            "tokens": tokens,
            "mean": loss,
            "held": min(loss, top),
            "last": tokens == curve.tokens[-1],
            "text": f"seed {curve.seed} diverged after {count(curve.tokens[-1])} tokens",
        }
        for arm in summary.arms
        for curve in arm.curves
        if curve.seed in arm.diverged
        for tokens, loss in zip(curve.tokens, curve.values, strict=True)
    ]


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
