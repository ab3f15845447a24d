"""Charts over the course of training with one line per arm, and their data. They show evaluations, training loss,
gradients and probes."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import altair as alt

from archlab.pricing.units import count
from archlab.report.charts.lines import Axis, curves
from archlab.report.charts.marks import ChartRow, Width
from archlab.report.probe.charts import Line, ProbePicture, depth_pictures, training_pictures
from archlab.report.study.arms import labels, seed_effects
from archlab.study.formatting import span
from archlab.study.outcomes.schema import Unit
from archlab.study.record import ArmSummary, Curve, ProbedArm, StudySummary


class CurveQuantity(NamedTuple):
    """A quantity that is drawn over training tokens."""

    axis: Axis
    of: Callable[[Curve], tuple[Sequence[int], Sequence[float]]]
    """Function that returns numbers of training tokens, and the value of one run at each of them."""


LOSS = CurveQuantity(Axis("nats per token", "nats per token"), lambda curve: (curve.trained, curve.losses))
GRADIENT = CurveQuantity(Axis("norm", "norm", is_logarithmic=True), lambda curve: (curve.trained, curve.gradients))

LINES_SHOW = (
    "A line is the mean over the seeds, in a band from the lowest to the highest seed. Effects that a seed and its "
    "held-out text have on all arms alike are removed from the band."
)
"""Caption of charts with one line per arm."""
THIN_LINES_SHOW = "A thin line that ends in a cross is a run that diverged."
"""Sentence that is appended to the caption if runs diverged."""


def evaluations(summary: StudySummary, width: Width = "container") -> alt.LayerChart | None:
    """Return a chart of all evaluations, from before the first update to the end. Return None without evaluations.

    This function, `last_half` and `updates` also return None if the scores of the arms mean different things.
    """
    return _curves(summary, _evaluated(summary), width, from_zero=True)


def last_half(summary: StudySummary, width: Width = "container") -> alt.LayerChart | None:
    """Return a chart of the evaluations in the second half of training, in which arms are close together."""
    return _curves(summary, _evaluated(summary), width, second_half=True)


def updates(summary: StudySummary, quantity: CurveQuantity) -> alt.LayerChart | None:
    """Return a chart of the training loss or the gradients. Return None if no run has them."""
    return _curves(summary, quantity if summary.evaluated else None, "container", height=260)


def _evaluated(summary: StudySummary) -> CurveQuantity | None:
    titles: dict[Unit, str] = {
        "bits per byte": "bits per byte on held-out text",
        "nats per token": "nats per hidden token of held-out text",
        "share": "share of right answers",
    }
    unit = summary.evaluated
    return CurveQuantity(Axis(titles[unit], unit), lambda curve: (curve.tokens, curve.values)) if unit else None


def _curves(
    summary: StudySummary,
    quantity: CurveQuantity | None,
    width: Width,
    *,
    from_zero: bool = False,
    second_half: bool = False,
    height: int = 340,
) -> alt.LayerChart | None:
    if quantity is None:
        return None
    means, diverged = mean_rows(summary, quantity), diverged_rows(summary, quantity)
    names = list(labels(summary).values())
    return curves(
        names, means, diverged, quantity.axis, width=width, from_zero=from_zero, second_half=second_half, height=height
    )


def mean_rows(summary: StudySummary, quantity: CurveQuantity) -> list[ChartRow]:
    """Return one row per arm and number of training tokens: the mean over the seeds that finished, and the lowest and
    highest value.

    The lowest and highest value are computed without effects that a seed and its held-out text have on all arms.
    """
    by_arm = {arm.name: _by_tokens(arm, quantity) for arm in summary.arms}
    evaluated = () if quantity.axis.is_logarithmic else {tokens for points in by_arm.values() for tokens in points}
    effects = {
        tokens: seed_effects(points[tokens] for points in by_arm.values() if tokens in points) for tokens in evaluated
    }
    arm_labels = labels(summary)
    return [
        _mean_row(arm_labels[arm], tokens, values, effects.get(tokens, {}), quantity)
        for arm, points in by_arm.items()
        for tokens, values in sorted(points.items())
    ]


_Points = Mapping[int, Mapping[int, float]]


def _by_tokens(arm: ArmSummary, quantity: CurveQuantity) -> _Points:
    """Return the values at the numbers of training tokens that all seeds have in common. Seeds may differ in these
    numbers if `eval_every` was changed between runs."""
    values_at: dict[int, dict[int, float]] = {}
    for curve in arm.curves:
        if curve.seed not in arm.diverged:
            for tokens, value in zip(*quantity.of(curve), strict=True):
                values_at.setdefault(tokens, {})[curve.seed] = value
    finished = max(map(len, values_at.values()), default=0)
    return {tokens: values for tokens, values in values_at.items() if len(values) == finished}


def _mean_row(
    arm: str, tokens: int, values: Mapping[int, float], seed_effect: Mapping[int, float], quantity: CurveQuantity
) -> ChartRow:
    mean, seeds = fmean(values.values()), values.values()
    aligned = [value - seed_effect.get(seed, 0.0) for seed, value in values.items()]
    text = quantity.axis.text
    seed_range = span(text(min(seeds)), text(max(seeds)))
    return {
        "arm": arm,
        "tokens": tokens,
        "mean": mean,
        "low": min(aligned),
        "high": max(aligned),
        "text": f"{text(mean)} at {count(tokens)} tokens, seeds {seed_range}",
    }


def diverged_rows(summary: StudySummary, quantity: CurveQuantity) -> list[ChartRow]:
    """Return the curves of the runs that diverged, with their last points marked."""
    arm_labels = labels(summary)
    return [
        {
            "arm": arm_labels[arm.name],
            "seed": curve.seed,
            "tokens": tokens,
            "mean": value,
            "low": value,
            "high": value,
            "last": tokens == quantity.of(curve)[0][-1],
            "text": f"seed {curve.seed} diverged after {count(quantity.of(curve)[0][-1])} tokens",
        }
        for arm in summary.arms
        for curve in arm.curves
        if curve.seed in arm.diverged
        for tokens, value in zip(*quantity.of(curve), strict=True)
    ]


def depth_probes(summary: StudySummary) -> list[ProbePicture]:
    """Return charts over the layers, from the last probe of each arm. The result is empty if nothing was probed."""
    return depth_pictures({label: probed.at_end if probed else {} for label, probed in _probed(summary).items()})


def time_probes(summary: StudySummary) -> list[ProbePicture]:
    """Return charts over the course of training, with one line per arm. The values of all layers are combined into
    one."""
    return training_pictures({label: _lines(probed) if probed else {} for label, probed in _probed(summary).items()})


def _probed(summary: StudySummary) -> dict[str, ProbedArm | None]:
    """Map the label of every arm to its probes. Arms without probes are included, so that each arm keeps its color."""
    return {label: arm.probes for label, arm in zip(labels(summary).values(), summary.arms, strict=True)}


def _lines(probed: ProbedArm) -> dict[str, Line]:
    return {name: (probed.tokens, values) for name, values in probed.over_time.items()}
