"""Comparisons of a study: arms with their references, effects of crossed factors, and trends over model sizes.

Average effects and interactions of factors are weighted sums of the arms' values (Fisher 1935). They are tested like
the difference between two arms, paired by seed.

A trend tells whether the difference between an arm and its reference grows or shrinks with the model size. For each
seed, a straight line is fitted to the differences, as a function of the logarithm of the size. The trend is the slope
of this line. All sizes have the same weight. Weighting each size by its variance would be more precise if the variances
were known, but three to five seeds estimate them badly. A test that treats such estimates as the true variances finds
slopes that do not exist. A trend says nothing about sizes outside the trained range.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, groupby
from math import log
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from archlab.pricing.units import count
from archlab.study.arm import setting_text, short_names
from archlab.study.outcomes.schema import Outcome
from archlab.study.record import Comparison, FactorContrast, Heading, OutcomeStatistics, SizeTrend, Trend
from archlab.study.stats import (
    Contrast,
    Folds,
    Values,
    Weights,
    compare,
    compare_exact,
    independent,
    pairwise,
    weighted,
)


class ComparedArm(Protocol):
    """The attributes of an arm that decide with what it is compared. A planned arm has them, and so has an arm of a
    results file."""

    @property
    def name(self) -> str: ...

    @property
    def reference(self) -> str | None:
        """Name of the arm that this arm is compared with; None for the first arm."""
        ...

    @property
    def factors(self) -> Mapping[str, Any]:
        """The arm's level of each crossed factor."""
        ...

    @property
    def size(self) -> int | None:
        """Parameter count to which the base was scaled; None if the study has one size."""
        ...

    @property
    def plain_label(self) -> str:
        """Label without the size."""
        ...

    @property
    def parameters(self) -> int: ...


class PlannedContrast(NamedTuple):
    """A contrast between factor levels, defined by weights before the arms' values are known."""

    factors: Mapping[str, tuple[Any, Any]]
    """The two compared levels of each factor, as in `FactorContrast.factors`."""
    sum: Contrast
    effects: tuple[Weights, Weights] | None
    """For an interaction, the weights of two effects: the effect of the second factor at each of the two levels of the
    first factor. None for an average effect."""


def comparisons(arms: Sequence[ComparedArm]) -> dict[str, Contrast]:
    """Return all comparisons that share one Holm correction: arms with their references, contrasts of factors, and
    trends."""
    references = {arm.name: arm.reference for arm in arms if arm.reference}
    factors = {name: planned.sum for name, planned in factor_contrasts(arms).items()}
    trends = {name: trend.change for name, trend in planned_trends(arms).items()}
    return {**pairwise(references), **factors, **trends}


def factor_contrasts(arms: Sequence[ComparedArm]) -> dict[str, PlannedContrast]:
    """Return the contrasts of the crossed factors, by name. The interactions of each pair of factors come first, then
    the average effects.

    The result is empty if there is only one factor, because the comparison of each arm with the first arm already shows
    the factor's effect.
    """
    levels: dict[str, list[Any]] = {}
    for factor, level in (pair for arm in arms for pair in arm.factors.items()):
        known_levels = levels.setdefault(factor, [])
        if level not in known_levels:
            known_levels.append(level)
    if len(levels) < 2:
        return {}
    steps = {factor: [(first, level) for level in others] for factor, (first, *others) in levels.items()}
    interactions = [
        _interaction(arms, {condition: condition_step, factor: factor_step})
        for condition, factor in combinations(steps, 2)
        for condition_step in steps[condition]
        for factor_step in steps[factor]
    ]
    averages = [_average(arms, {factor: step}) for factor in steps for step in steps[factor]]
    return dict([*interactions, *averages])


def contrast_summaries(
    planned: Mapping[str, PlannedContrast],
    values: Mapping[str, Values],
    tested: Mapping[str, OutcomeStatistics],
    folds: Folds,
) -> list[FactorContrast]:
    """Return the summary of each contrast.

    `values` holds the outcome's values of each arm. `tested` holds the statistics of each contrast.
    """
    return [
        FactorContrast(
            **dict(tested[name]),
            name=name,
            factors=dict(contrast.factors),
            effects=effects(contrast, values, folds),
        )
        for name, contrast in planned.items()
    ]


def _interaction(arms: Sequence[ComparedArm], factors: Mapping[str, tuple[Any, Any]]) -> tuple[str, PlannedContrast]:
    (condition, (first, other)), (factor, step) = factors.items()
    effects = (_effect(arms, factor, step, {condition: first}), _effect(arms, factor, step, {condition: other}))
    names = short_names(arms[0].factors)
    changed = setting_text(names[factor], step[1])
    conditions = [f"where {setting_text(names[condition], level)}" for level in (first, other)]
    total = {**effects[1], **{arm: -weight for arm, weight in effects[0].items()}}
    return f"{changed} {conditions[1]}", PlannedContrast(factors, Contrast(total, conditions[0]), effects)


def _average(arms: Sequence[ComparedArm], factors: Mapping[str, tuple[Any, Any]]) -> tuple[str, PlannedContrast]:
    ((factor, step),) = factors.items()
    name = short_names(arms[0].factors)[factor]
    first, other = (f"{setting_text(name, level)} on average" for level in step)
    return other, PlannedContrast(factors, Contrast(_effect(arms, factor, step, {}), first), None)


def _effect(arms: Sequence[ComparedArm], factor: str, step: tuple[Any, Any], condition: Mapping[str, Any]) -> Weights:
    """Return the weight of each arm in the effect of changing a factor from one level to another.

    `condition` fixes the levels of some other factors. The effect is averaged over all levels of the remaining factors.
    """
    first, other = (
        [arm.name for arm in arms if {**arm.factors, **condition, factor: level} == arm.factors] for level in step
    )
    return {**dict.fromkeys(other, 1 / len(other)), **dict.fromkeys(first, -1 / len(first))}


def effects(contrast: PlannedContrast, values: Mapping[str, Values], folds: Folds) -> tuple[float, float] | None:
    """Return the two effects of an interaction, averaged over the seeds on which all its arms have a value.

    Return None if there are no such seeds, or if the contrast is an average effect.
    """
    seeds = [seed for seed, value in weighted(values, contrast.sum.weights).items() if value is not None]
    if contrast.effects is None or not seeds:
        return None
    first, other = (fmean(independent(weighted(values, effect), folds, seeds)) for effect in contrast.effects)
    return first, other


class PlannedTrend(NamedTuple):
    """The trend of an arm over model sizes, defined by weights before the arms' values are known."""

    arms: Sequence[ComparedArm]
    """The arm at each size, from the smallest size to the largest."""
    reference: str
    """Label of the reference."""
    sizes: Sequence[int]
    """Parameter count of the reference at each size."""
    change: Contrast
    """Weight of each arm in the change of the fitted line: its value at the largest size minus its value at the
    smallest."""
    middle: Weights
    """Weight of each arm in the mean difference over all sizes. The fitted line has this mean at the mean of
    log(size)."""


def planned_trends(arms: Sequence[ComparedArm]) -> dict[str, PlannedTrend]:
    """Return the trend of each arm that has a reference, by the trend's name. Empty if all arms have the same size."""
    named = {arm.name: arm for arm in arms}
    by_size = [list(group) for _, group in groupby(arms, key=lambda arm: arm.size)]
    trends = dict[str, PlannedTrend]()
    for column in zip(*by_size, strict=True) if len(by_size) > 1 else ():
        references = [named[arm.reference] for arm in column if arm.reference]
        if references:
            sizes = [reference.parameters for reference in references]
            change = Contrast(_differences(column, references, _weights(sizes)), f"at {count(sizes[0])}")
            middle = _differences(column, references, [1 / len(sizes)] * len(sizes))
            name = f"{column[0].name} to {count(column[-1].size or 0)}"
            trends[name] = PlannedTrend(column, references[0].plain_label, sizes, change, middle)
    return trends


def size_trends(
    planned: Mapping[str, PlannedTrend], tested: Mapping[str, OutcomeStatistics], folds: Folds
) -> list[SizeTrend]:
    """Return the summary of each trend. `tested` holds the statistics of the arms and of the trends, by name."""
    return [_trend(name, trend, tested, folds) for name, trend in planned.items()]


def _weights(sizes: Sequence[int]) -> list[float]:
    """Return one weight per size. The weighted sum of one value per size is the change of the line that is fitted to
    these values, from the first size to the last."""
    x = [log(size) for size in sizes]
    centered = [value - fmean(x) for value in x]
    return [value * (x[-1] - x[0]) / sum(c * c for c in centered) for value in centered]


def _differences(column: Sequence[ComparedArm], references: Sequence[ComparedArm], weights: Sequence[float]) -> Weights:
    weights_of_arms = {arm.name: weight for arm, weight in zip(column, weights, strict=True)}
    return weights_of_arms | {arm.name: -weight for arm, weight in zip(references, weights, strict=True)}


def _trend(name: str, planned: PlannedTrend, tested: Mapping[str, OutcomeStatistics], folds: Folds) -> SizeTrend:
    comparisons = [tested[arm.name].comparison for arm in planned.arms]
    change = tested[name].comparison
    line = None
    if change and change.difference is not None:
        x = [log(size) for size in planned.sizes]
        slope = change.difference / (x[-1] - x[0])
        values = {arm: tested[arm].values for arm in planned.middle}
        middle = fmean(independent(weighted(values, planned.middle), folds))
        line = (middle + slope * (x[0] - fmean(x)), middle + slope * (x[-1] - fmean(x)))
    ends = (comparisons[0], comparisons[-1])
    are_differences = [comparison is not None and comparison.is_difference for comparison in ends]
    is_change = change is not None and change.is_difference
    return SizeTrend(
        **dict(tested[name]),
        name=name,
        label=planned.arms[0].plain_label,
        reference=planned.reference,
        sizes=list(planned.sizes),
        arms=[arm.name for arm in planned.arms],
        line=line,
        trend=_trend_word(line, *are_differences) if is_change and line else "no trend found",
    )


def _trend_word(line: tuple[float, float], at_first: bool, at_last: bool) -> Trend:
    """Return the word for a significant change of a fitted line.

    If the line does not cross zero, the word is `grows` or `shrinks`. If it crosses zero, the word depends on whether
    the differences at the first and at the last size are significant.
    """
    first, last = line
    if first * last >= 0:
        return "grows" if abs(last) > abs(first) else "shrinks"
    by_ends: dict[tuple[bool, bool], Trend] = {(True, True): "flips", (False, True): "grows", (True, False): "shrinks"}
    return by_ends.get((at_first, at_last), "no trend found")


def heading(name: str, outcome: Outcome) -> Heading:
    return Heading(name=name, title=outcome.title, unit=outcome.unit, better=outcome.better, source=outcome.source)


def outcome_statistics(
    outcome: Outcome | Heading,
    values: Mapping[str, Values],
    contrasts: Mapping[str, Contrast],
    margin: float | None = None,
    first: Collection[int] | None = None,
    folds: Folds = None,
    level: float | None = None,
) -> dict[str, OutcomeStatistics]:
    """Return the statistics of an outcome for each arm and each contrast, by name.

    A contrast with the name of an arm compares this arm with its reference. `margin`, `first`, `folds` and `level` are
    passed to `compare`.
    """
    if outcome.source == "config":
        compared = compare_exact(values, contrasts, outcome.better)
    else:
        compared = compare(values, contrasts, outcome.better, margin, first, folds, level)
    sums = {name: weighted(values, contrast.weights) for name, contrast in contrasts.items() if name not in values}
    return {name: _measured(each, compared.get(name), folds) for name, each in {**values, **sums}.items()}


def _measured(values: Values, comparison: Comparison | None, folds: Folds) -> OutcomeStatistics:
    known = independent(values, folds)
    return OutcomeStatistics(
        values=dict(values),
        mean=statistics.fmean(known) if known else None,
        deviation=statistics.stdev(known) if len(known) > 1 else None,
        comparison=comparison,
    )
