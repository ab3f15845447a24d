"""Whether what an arm gains or loses carries over to larger models: the slope of its difference over a ladder of sizes.

The slope is that of the straight line through the differences over the logarithm of the size, fitted to each seed with
equal weights, and tested over the seeds like any other comparison. Weights by the variance at each size would be more
precise if those were known; of three to five seeds they are not, and a test that takes them for known finds slopes
that are not there. Nothing is said beyond the sizes that were trained.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import log
from statistics import fmean
from typing import NamedTuple

from archlab.pricing.params import parameters
from archlab.pricing.units import count
from archlab.study.design import Arm
from archlab.study.record import Measured, SizeTrend, Trend
from archlab.study.stats import Contrast, Folds, Weights, independent, weighted


class PlannedTrend(NamedTuple):
    """Of one arm, before there are values."""

    arms: Sequence[Arm]
    """At each size, ascending."""
    reference: str
    """The label of the arm that it is compared with."""
    sizes: Sequence[int]
    """Parameters of that arm."""
    change: Contrast
    """By the line, the difference at the largest size minus that at the smallest."""
    middle: Weights
    """Of the mean difference over all sizes, through which the line goes."""


def planned_trends(arms: Sequence[Arm]) -> dict[str, PlannedTrend]:
    """By name; none where there is one size."""
    named = {arm.name: arm for arm in arms}
    by_size = [list(group) for _, group in groupby(arms, key=lambda arm: arm.size)]
    found = dict[str, PlannedTrend]()
    for column in zip(*by_size, strict=True) if len(by_size) > 1 else ():
        references = [named[arm.reference] for arm in column if arm.reference]
        if references:
            sizes = [parameters(reference.config.model).total for reference in references]
            change = Contrast(_differences(column, references, _weights(sizes)), f"at {count(sizes[0])}")
            middle = _differences(column, references, [1 / len(sizes)] * len(sizes))
            name = f"{column[0].name} to {count(column[-1].size or 0)}"
            found[name] = PlannedTrend(column, references[0].plain_label, sizes, change, middle)
    return found


def size_trends(planned: Mapping[str, PlannedTrend], tested: Mapping[str, Measured], folds: Folds) -> list[SizeTrend]:
    """`tested`: of the arms, and of the changes."""
    return [_trend(name, one, tested, folds) for name, one in planned.items()]


def _weights(sizes: Sequence[int]) -> list[float]:
    """Of the values at these sizes: their sum is the line's change from the first size to the last."""
    x = [log(size) for size in sizes]
    centred = [one - fmean(x) for one in x]
    return [one * (x[-1] - x[0]) / sum(c * c for c in centred) for one in centred]


def _differences(column: Sequence[Arm], references: Sequence[Arm], weights: Sequence[float]) -> Weights:
    """The sum of the differences at each size, times these."""
    ours = {arm.name: weight for arm, weight in zip(column, weights, strict=True)}
    return ours | {arm.name: -weight for arm, weight in zip(references, weights, strict=True)}


def _trend(name: str, planned: PlannedTrend, tested: Mapping[str, Measured], folds: Folds) -> SizeTrend:
    found = [tested[arm.name].comparison for arm in planned.arms]
    change = tested[name].comparison
    line = None
    if change and change.difference is not None:
        x = [log(size) for size in planned.sizes]
        slope = change.difference / (x[-1] - x[0])
        values = {arm: tested[arm].values for arm in planned.middle}
        middle = fmean(independent(weighted(values, planned.middle), folds))
        line = (middle + slope * (x[0] - fmean(x)), middle + slope * (x[-1] - fmean(x)))
    verdicts = [one.verdict if one else "too few runs" for one in (found[0], found[-1])]
    real = change is not None and change.verdict in ("better", "worse", "differs")
    return SizeTrend(
        **dict(tested[name]),
        name=name,
        label=planned.arms[0].plain_label,
        reference=planned.reference,
        sizes=list(planned.sizes),
        arms=[arm.name for arm in planned.arms],
        line=line,
        trend=_judged(line, verdicts) if real and line else "cannot be told",
    )


def _judged(line: tuple[float, float], verdicts: Sequence[str]) -> Trend:
    """Of a change that was found. Where the line crosses zero, only an end at which a difference was found counts."""
    first, last = line
    if first * last >= 0:
        return "grows" if abs(last) > abs(first) else "shrinks"
    found = [verdict in ("better", "worse", "differs") for verdict in verdicts]
    by_ends: dict[tuple[bool, bool], Trend] = {(True, True): "flips", (False, True): "grows", (True, False): "shrinks"}
    return by_ends.get((found[0], found[1]), "cannot be told")
