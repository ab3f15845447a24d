"""What a study compares: every arm with its reference, what crossed factors do, and trends over sizes.

Effects of factors, and of two of them together beyond what each does alone, are sums of arms with weights (Fisher
1935), so they are tested like the difference of two arms, by the same seeds.

A trend says whether what an arm gains or loses carries over to larger models: it is the slope of its difference over a
ladder of sizes, of the straight line through the differences over the logarithm of the size, fitted to each seed with
equal weights. Weights by the variance at each size would be more precise if those were known; of three to five seeds
they are not, and a test that takes them for known finds slopes that are not there. Nothing is said beyond the sizes
that were trained.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, groupby
from math import log
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from archlab.pricing.params import parameters
from archlab.pricing.units import count
from archlab.study.arm import Arm, said, short_names
from archlab.study.outcome_schema import Outcome
from archlab.study.record import Comparison, FactorContrast, Heading, OutcomeStatistics, SizeTrend, Trend
from archlab.study.stats import Contrast, Folds, Values, Weights, compare, exactly, independent, pairwise, weighted


class Crossed(Protocol):
    """An arm, as far as contrasts ask."""

    @property
    def name(self) -> str:
        """Of the arm."""
        ...

    @property
    def factors(self) -> Mapping[str, Any]:
        """Factor -> its level."""
        ...


class PlannedContrast(NamedTuple):
    """A contrast of factors, before there are values."""

    factors: Mapping[str, tuple[Any, Any]]
    """As in `FactorContrast`."""
    sum: Contrast
    effects: tuple[Weights, Weights] | None
    """Of an interaction: of the last factor, at the first level of the other one and at the other level."""


def comparisons(arms: Sequence[Arm]) -> dict[str, Contrast]:
    """All that are corrected for each other: every arm with its reference, every contrast of factors, every trend."""
    references = {arm.name: arm.reference for arm in arms if arm.reference}
    factors = {name: planned.sum for name, planned in factor_contrasts(arms).items()}
    return {**pairwise(references), **factors, **{name: trend.change for name, trend in planned_trends(arms).items()}}


def factor_contrasts(arms: Sequence[Crossed]) -> dict[str, PlannedContrast]:
    """By name: the interactions of every two factors, then what each does on average; none where there is one factor,
    for the arms' own comparisons say what that does."""
    levels: dict[str, list[Any]] = {}
    for factor, level in (pair for arm in arms for pair in arm.factors.items()):
        known_levels = levels.setdefault(factor, [])
        if level not in known_levels:
            known_levels.append(level)
    if len(levels) < 2:
        return {}
    steps = {factor: [(first, other) for other in others] for factor, (first, *others) in levels.items()}
    together = [
        _interaction(arms, {one: here, other: there})
        for one, other in combinations(steps, 2)
        for here in steps[one]
        for there in steps[other]
    ]
    alone = [_average(arms, {factor: step}) for factor in steps for step in steps[factor]]
    return dict([*together, *alone])


def contrast_summaries(
    planned: Mapping[str, PlannedContrast],
    values: Mapping[str, Values],
    tested: Mapping[str, OutcomeStatistics],
    folds: Folds,
) -> list[FactorContrast]:
    """`values`: of the arms; `tested`: of the contrasts."""
    return [
        FactorContrast(
            **dict(tested[name]),
            name=name,
            factors=dict(contrast.factors),
            effects=effects(contrast, values, folds),
        )
        for name, contrast in planned.items()
    ]


def _interaction(arms: Sequence[Crossed], factors: Mapping[str, tuple[Any, Any]]) -> tuple[str, PlannedContrast]:
    (given, (first, other)), (factor, step) = factors.items()
    effects = (_effect(arms, factor, step, {given: first}), _effect(arms, factor, step, {given: other}))
    names = short_names(arms[0].factors)
    changed = said(names[factor], step[1])
    where = [f"where {said(names[given], level)}" for level in (first, other)]
    total = {**effects[1], **{arm: -weight for arm, weight in effects[0].items()}}
    return f"{changed} {where[1]}", PlannedContrast(factors, Contrast(total, where[0]), effects)


def _average(arms: Sequence[Crossed], factors: Mapping[str, tuple[Any, Any]]) -> tuple[str, PlannedContrast]:
    ((factor, step),) = factors.items()
    name = short_names(arms[0].factors)[factor]
    first, other = (f"{said(name, level)} on average" for level in step)
    return other, PlannedContrast(factors, Contrast(_effect(arms, factor, step, {}), first), None)


def _effect(arms: Sequence[Crossed], factor: str, step: tuple[Any, Any], given: Mapping[str, Any]) -> Weights:
    """Of a step from one level of a factor to another, where other factors have the given levels; the average over all
    levels of the rest."""
    first, other = (
        [arm.name for arm in arms if {**arm.factors, **given, factor: level} == arm.factors] for level in step
    )
    return {**dict.fromkeys(other, 1 / len(other)), **dict.fromkeys(first, -1 / len(first))}


def effects(contrast: PlannedContrast, values: Mapping[str, Values], folds: Folds) -> tuple[float, float] | None:
    """As in `Planned`, the means over the seeds that all arms have; None of what is no interaction."""
    seeds = [seed for seed, value in weighted(values, contrast.sum.weights).items() if value is not None]
    if contrast.effects is None or not seeds:
        return None
    first, other = (fmean(independent(weighted(values, effect), folds, seeds)) for effect in contrast.effects)
    return first, other


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


def size_trends(
    planned: Mapping[str, PlannedTrend], tested: Mapping[str, OutcomeStatistics], folds: Folds
) -> list[SizeTrend]:
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


def _trend(name: str, planned: PlannedTrend, tested: Mapping[str, OutcomeStatistics], folds: Folds) -> SizeTrend:
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


def heading(name: str, outcome: Outcome) -> Heading:
    """What it is."""
    return Heading(name=name, title=outcome.title, unit=outcome.unit, better=outcome.better, source=outcome.source)


def outcome_statistics(
    outcome: Outcome | Heading,
    values: Mapping[str, Values],
    references: Mapping[str, str],
    margin: float | None = None,
    first: Collection[int] | None = None,
    contrasts: Mapping[str, Contrast] | None = None,
    folds: Folds = None,
) -> dict[str, OutcomeStatistics]:
    """Arm -> its values, compared with those of its reference; and contrast -> its values, compared with zero."""
    if outcome.source == "config":
        comparisons = exactly(values, references, outcome.better, contrasts)
    else:
        comparisons = compare(values, references, outcome.better, margin, first, contrasts, folds)
    every = {**values, **{name: weighted(values, contrast.weights) for name, contrast in (contrasts or {}).items()}}
    return {name: _measured(found, comparisons.get(name), folds) for name, found in every.items()}


def _measured(values: Values, comparison: Comparison | None, folds: Folds) -> OutcomeStatistics:
    known = independent(values, folds)
    return OutcomeStatistics(
        values=dict(values),
        mean=statistics.fmean(known) if known else None,
        deviation=statistics.stdev(known) if len(known) > 1 else None,
        comparison=comparison,
    )
