"""The points of a sweep as the rows that its picture draws and its table shows."""

from collections.abc import Sequence
from statistics import fmean

import altair as alt

from archlab.report.charts.axes import padded
from archlab.report.charts.lines import YAxis, single_out
from archlab.report.charts.marks import Row
from archlab.report.study.arms import labels
from archlab.report.study.grids import aligned, over_values
from archlab.study.formatting import amount, plural, span
from archlab.study.record import StudySummary, SweepPoint


def sweep_rows(summary: StudySummary) -> list[Row]:
    """Per arm and value: the mean over the seeds, null where a run diverged. `mark` is at the value with the lowest
    mean: `optimum`, or `edge` where it is the smallest or the largest that was tried."""
    named = labels(summary)
    by_arm: dict[str, list[SweepPoint]] = {}
    for point in summary.sweep:
        by_arm.setdefault(point.arm, []).append(point)
    return [row for arm, points in by_arm.items() for row in _of_arm(named[arm], points)]


def sweep_seed_rows(summary: StudySummary) -> list[Row]:
    """Per arm, value and seed: the loss, null where the run diverged."""
    named = labels(summary)
    return [
        {"arm": named[point.arm], "value": point.value, "seed": seed, "loss": loss}
        for point in summary.sweep
        for seed, loss in point.losses.items()
    ]


def _of_arm(label: str, points: Sequence[SweepPoint]) -> list[Row]:
    means = {point.value: fmean(losses) for point in points if len(losses := _finished(point)) == len(point.losses)}
    best = min(means, key=lambda value: means[value], default=None)
    edges = (points[0].value, points[-1].value)
    return [
        {
            "arm": label,
            "value": point.value,
            "mean": means.get(point.value),
            "diverged": f"{len(point.losses) - len(_finished(point))} of {len(point.losses)} diverged",
            "mark": None if point.value != best else "edge" if best in edges else "optimum",
            "text": _text(point, means.get(point.value), point.value == best, best in edges),
        }
        for point in points
    ]


def _text(point: SweepPoint, mean: float | None, is_best: bool, at_edge: bool) -> str:
    losses = _finished(point)
    ends = span(*(amount(end(losses), "bits per byte") for end in (min, max))) if losses else ""
    said = [
        f"{point.value:g}: " + (f"{len(point.losses) - len(losses)} of {plural(len(point.losses), 'seed')} diverged"
        if mean is None else f"{amount(mean, 'bits per byte')} bits per byte"),
        f"seeds {ends}" if losses else "",
        "the best" if is_best else "",
        "at the edge of the grid" if is_best and at_edge else "",
    ]  # fmt: skip
    return ", ".join(filter(None, said))


def _finished(point: SweepPoint) -> list[float]:
    return [loss for loss in point.losses.values() if loss is not None]


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
