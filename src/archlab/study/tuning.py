"""From the tuning runs to each arm's best values."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from archlab.config.core.merge import Raw
from archlab.study.design import Arm, grid
from archlab.study.plan import Plan
from archlab.study.record import TuningPoint
from archlab.study.runs import Ended, Run


class Tuned(NamedTuple):
    """What tuning found."""

    arms: list[Arm]
    """Those whose tuning is over, with their best values; all as they were where nothing is tuned."""
    warnings: list[str]
    """For each arm whose best value lies on the grid's edge, or that diverged everywhere."""
    points: list[TuningPoint]
    """Every point of the grid for every one of these arms."""


def tune(plan: Plan, ended: Callable[[Run], Ended | None]) -> Tuned:
    """`ended`: what a run left, or None while it has not ended."""
    points, tries = grid(plan.config), plan.tuning()
    if not points:
        return Tuned(list(plan.arms), [], [])
    tuned = Tuned([], [], [])
    for arm in plan.arms:
        left = [[ended(run) for run in runs] for runs in tries[arm.name]]
        over = [[run for run in runs if run] for runs in left]
        if list(map(len, over)) != list(map(len, left)):
            continue
        losses = [_mean_loss(runs) for runs in over]
        best = min(range(len(points)), key=lambda i: losses[i])
        if losses[best] == inf:
            tuned.warnings.append(f"{arm.label}: diverged at every value of the tuning grid; the first is used")
        else:
            tuned.warnings.extend(f"{arm.label}: {warning}" for warning in _edges(plan, points[best]))
        tuned.arms.append(arm.with_values(points[best]))
        tuned.points.extend(
            TuningPoint(arm=arm.name, values=point, results=[run.summary.score for run in runs], chosen=i == best)
            for i, (point, runs) in enumerate(zip(points, over, strict=True))
        )
    return tuned


def _mean_loss(runs: Sequence[Ended]) -> float:
    """Bits per byte, or the share of wrong answers; infinite where a run diverged."""
    scores = [run.summary for run in runs]
    if any(summary.status == "diverged" for summary in scores):
        return inf
    return fmean(1 - (s.accuracy or 0) if s.bits_per_byte is None else s.bits_per_byte for s in scores)


def _edges(plan: Plan, best: Raw) -> Iterator[str]:
    """A warning for each number that is the smallest or the largest of its grid."""
    for field, values in plan.config.tune.items():
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        if numbers and len(values) > 1 and best[field] in (min(values), max(values)):
            yield f"{field} = {best[field]} won at the edge of its grid; a wider one may find better"
