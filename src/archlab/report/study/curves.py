"""Pictures of a training, a line per arm: evaluations, the training loss, gradients, probes; and what they draw."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import altair as alt

from archlab.pricing.units import count
from archlab.report.charts.lines import Axis, curves
from archlab.report.charts.marks import ChartRow, Width
from archlab.report.probe.charts import OVER_TRAINING, Line, ProbePicture, depth_pictures, training_pictures
from archlab.report.study.arms import labels
from archlab.study.formatting import span
from archlab.study.record import ArmSummary, Curve, ProbedArm, StudySummary


class CurveQuantity(NamedTuple):
    """What is drawn over the training tokens."""

    axis: Axis
    of: Callable[[Curve], tuple[Sequence[int], Sequence[float]]]
    """Training tokens and values of one run."""


LOSS = CurveQuantity(Axis("nats per token", "nats per token"), lambda curve: (curve.trained, curve.losses))
GRADIENT = CurveQuantity(Axis("norm", "norm", is_logarithmic=True), lambda curve: (curve.trained, curve.gradients))

LINES_SHOW = (
    "A line is the mean over the seeds, in a band from the lowest seed to the highest, without what a seed and the "
    "text that it is judged on do to all arms alike."
)
"""Caption of pictures with a line per arm."""
THIN_LINES_SHOW = "A thin line is a run that diverged, up to the cross."
"""Added to it if runs diverged."""


def evaluations(summary: StudySummary, width: Width = "container") -> alt.LayerChart | None:
    """From the one before the first update to the end; None where there are none."""
    return _curves(summary, _evaluated(summary), width, from_zero=True)


def last_half(summary: StudySummary, width: Width = "container") -> alt.LayerChart | None:
    """The evaluations of the second half of the training, where arms are close."""
    return _curves(summary, _evaluated(summary), width, second_half=True)


def updates(summary: StudySummary, drawn: CurveQuantity) -> alt.LayerChart | None:
    """The loss or the gradients of the updates; None where no run has them."""
    return _curves(summary, drawn, "container", height=260)


def _evaluated(summary: StudySummary) -> CurveQuantity:
    title = {"bits per byte": "bits per byte on held-out text", "share": "share of right answers"}[summary.evaluated]
    return CurveQuantity(Axis(title, summary.evaluated), lambda curve: (curve.tokens, curve.values))


def _curves(
    summary: StudySummary,
    drawn: CurveQuantity,
    width: Width,
    *,
    from_zero: bool = False,
    second_half: bool = False,
    height: int = 340,
) -> alt.LayerChart | None:
    means, gone = mean_rows(summary, drawn), diverged_rows(summary, drawn)
    named = list(labels(summary).values())
    return curves(
        named, means, gone, drawn.axis, width=width, from_zero=from_zero, second_half=second_half, height=height
    )


def mean_rows(summary: StudySummary, drawn: CurveQuantity) -> list[ChartRow]:
    """Per arm and training length: the mean over the seeds that finished, and the lowest and highest of them without
    what a seed, and the text that it is judged on, does to all arms alike."""
    by_arm = {arm.name: _by_tokens(arm, drawn) for arm in summary.arms}
    away = {} if drawn.axis.is_logarithmic else _shared(list(by_arm.values()))
    named = labels(summary)
    return [
        _mean_row(named[arm], tokens, values, away.get(tokens, {}), drawn)
        for arm, points in by_arm.items()
        for tokens, values in sorted(points.items())
    ]


_Points = Mapping[int, Mapping[int, float]]
"""Training tokens -> seed -> value."""


def _by_tokens(arm: ArmSummary, drawn: CurveQuantity) -> _Points:
    """Only where all seeds have a value: `eval_every` may change between one seed and the next."""
    at: dict[int, dict[int, float]] = {}
    for curve in arm.curves:
        if curve.seed not in arm.diverged:
            for tokens, value in zip(*drawn.of(curve), strict=True):
                at.setdefault(tokens, {})[curve.seed] = value
    finished = max(map(len, at.values()), default=0)
    return {tokens: values for tokens, values in at.items() if len(values) == finished}


def _shared(arms: Sequence[_Points]) -> _Points:
    """How far each seed is from the mean of an arm, on average over the arms that have all seeds."""
    found = dict[int, dict[int, float]]()
    for tokens in {tokens for points in arms for tokens in points}:
        here = [points[tokens] for points in arms if tokens in points]
        seeds = {seed for values in here for seed in values}
        whole = [values for values in here if len(values) == len(seeds)]
        if len(whole) > 1:  # one alone tells nothing of what others have in common with it
            found[tokens] = {seed: fmean(v[seed] - fmean(v.values()) for v in whole) for seed in seeds}
    return found


def _mean_row(
    arm: str, tokens: int, values: Mapping[int, float], away: Mapping[int, float], drawn: CurveQuantity
) -> ChartRow:
    mean, seeds = fmean(values.values()), values.values()
    aligned = [value - away.get(seed, 0.0) for seed, value in values.items()]
    text = drawn.axis.text
    shown = span(text(min(seeds)), text(max(seeds)))
    return {
        "arm": arm,
        "tokens": tokens,
        "mean": mean,
        "low": min(aligned),
        "high": max(aligned),
        "text": f"{text(mean)} at {count(tokens)} tokens, seeds {shown}",
    }


def diverged_rows(summary: StudySummary, drawn: CurveQuantity) -> list[ChartRow]:
    """The curves of the runs that diverged, their last points marked."""
    named = labels(summary)
    return [
        {
            "arm": named[arm.name],
            "seed": curve.seed,
            "tokens": tokens,
            "mean": value,
            "low": value,
            "high": value,
            "last": tokens == drawn.of(curve)[0][-1],
            "text": f"seed {curve.seed} diverged after {count(drawn.of(curve)[0][-1])} tokens",
        }
        for arm in summary.arms
        for curve in arm.curves
        if curve.seed in arm.diverged
        for tokens, value in zip(*drawn.of(curve), strict=True)
    ]


def depth_probes(summary: StudySummary) -> list[ProbePicture]:
    """Over the layers, at the last probe; none where nothing was probed."""
    return depth_pictures({label: probed.at_end if probed else {} for label, probed in _probed(summary).items()})


def time_probes(summary: StudySummary) -> list[ProbePicture]:
    """Over the training, one number for all layers."""
    probed = _probed(summary)
    return training_pictures(
        {name: {arm: _line(of_arm, name) for arm, of_arm in probed.items()} for name in OVER_TRAINING}
    )


def _probed(summary: StudySummary) -> dict[str, ProbedArm | None]:
    """By label, every arm, so that each keeps its color."""
    return {label: arm.probes for label, arm in zip(labels(summary).values(), summary.arms, strict=True)}


def _line(probed: ProbedArm | None, name: str) -> Line:
    return (probed.tokens, probed.over_time[name]) if probed and name in probed.over_time else ([], [])
