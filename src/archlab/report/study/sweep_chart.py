"""A picture of a sweep: the loss at the end over the values of the swept field, from which its outcomes come."""

import altair as alt

from archlab.report.charts.axes import padded
from archlab.report.charts.lines import YAxis, single_out
from archlab.report.study.arms import labels
from archlab.report.study.grids import aligned, over_values
from archlab.report.study.sweep_rows import sweep_rows, sweep_seed_rows
from archlab.study.record import StudySummary


def sweep(summary: StudySummary) -> alt.LayerChart | None:
    """A thick line per arm, the mean over its seeds, and a thin one per seed, aligned; None where nothing was swept.

    A ring is the best value, a square one at the edge of the grid; a cross is a value at which a run diverged. The
    picture reaches no higher than the loss of an untrained model, beyond which no outcome counts what a run loses."""
    if not summary.sweep:
        return None
    rows, seeds, named = sweep_rows(summary), aligned(sweep_seed_rows(summary)), list(labels(summary).values())
    losses = [row["loss"] for row in seeds if row["loss"] is not None] or [0.0]
    highest = max(min(max(losses), _untrained(summary)), min(losses))
    y = YAxis("bits per byte", "bits per byte", *padded(min(losses), highest))
    description = f"Loss of every arm over the values of {summary.sweep[0].field} that were swept"
    return over_values(rows, _x(summary), y, y.high, named, description, seeds).add_params(single_out())


def _untrained(summary: StudySummary) -> float:
    starts = [curve.values[0] for arm in summary.arms for curve in arm.curves if curve.tokens[:1] == [0]]
    return max(starts, default=float("inf"))


def _x(summary: StudySummary) -> alt.X:
    field, values = summary.sweep[0].field, sorted({point.value for point in summary.sweep})
    is_logarithmic = values[0] > 0
    scale = alt.Scale(
        type="log" if is_logarithmic else "linear", domain=[values[0], values[-1]], nice=False, padding=20
    )
    title = f"{field}, logarithmic axis" if is_logarithmic else field
    axis = alt.Axis(title=title, values=values, format="~g", labelOverlap="greedy", grid=False)
    return alt.X("value:Q", scale=scale, axis=axis)
