"""Pictures of a training, a line per arm: evaluations from the first step to the last, the training loss, gradients."""

import altair as alt

from archlab.report.charts.lines import Axis, curves
from archlab.report.charts.marks import Width
from archlab.report.study.arms import labels
from archlab.report.study.curve_rows import Quantity, diverged_rows, mean_rows
from archlab.study.record import StudySummary

LOSS = Quantity(Axis("nats per token", "nats per token"), lambda curve: (curve.trained, curve.losses))
GRADIENT = Quantity(Axis("norm", "norm", is_logarithmic=True), lambda curve: (curve.trained, curve.gradients))

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


def updates(summary: StudySummary, drawn: Quantity) -> alt.LayerChart | None:
    """The loss or the gradients of the updates; None where no run has them."""
    return _curves(summary, drawn, "container", height=260)


def _evaluated(summary: StudySummary) -> Quantity:
    title = {"bits per byte": "bits per byte on held-out text", "share": "share of right answers"}[summary.evaluated]
    return Quantity(Axis(title, summary.evaluated), lambda curve: (curve.tokens, curve.values))


def _curves(
    summary: StudySummary,
    drawn: Quantity,
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
