"""The points of a sweep as the rows that its picture draws and its table shows."""

from collections.abc import Sequence
from statistics import fmean

from archlab.report.charts.marks import Row
from archlab.report.study.arms import labels
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
