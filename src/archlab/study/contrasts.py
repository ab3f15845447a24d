"""What crossed factors do: each on average over the others, and two of them together beyond what each does alone.

Both are sums of arms with weights (Fisher 1935), so they are tested like the difference of two arms, by the same seeds.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from archlab.study.cross import said, short_names
from archlab.study.design import Arm
from archlab.study.record import FactorContrast, Measured
from archlab.study.stats import Contrast, Folds, Values, Weights, independent, pairwise, weighted
from archlab.study.trends import planned_trends


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


class Planned(NamedTuple):
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


def factor_contrasts(arms: Sequence[Crossed]) -> dict[str, Planned]:
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
    planned: Mapping[str, Planned], values: Mapping[str, Values], tested: Mapping[str, Measured], folds: Folds
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


def _interaction(arms: Sequence[Crossed], factors: Mapping[str, tuple[Any, Any]]) -> tuple[str, Planned]:
    (given, (first, other)), (factor, step) = factors.items()
    effects = (_effect(arms, factor, step, {given: first}), _effect(arms, factor, step, {given: other}))
    names = short_names(arms[0].factors)
    changed = said(names[factor], step[1])
    where = [f"where {said(names[given], level)}" for level in (first, other)]
    total = {**effects[1], **{arm: -weight for arm, weight in effects[0].items()}}
    return f"{changed} {where[1]}", Planned(factors, Contrast(total, where[0]), effects)


def _average(arms: Sequence[Crossed], factors: Mapping[str, tuple[Any, Any]]) -> tuple[str, Planned]:
    ((factor, step),) = factors.items()
    name = short_names(arms[0].factors)[factor]
    first, other = (f"{said(name, level)} on average" for level in step)
    return other, Planned(factors, Contrast(_effect(arms, factor, step, {}), first), None)


def _effect(arms: Sequence[Crossed], factor: str, step: tuple[Any, Any], given: Mapping[str, Any]) -> Weights:
    """Of a step from one level of a factor to another, where other factors have the given levels; the average over all
    levels of the rest."""
    first, other = (
        [arm.name for arm in arms if {**arm.factors, **given, factor: level} == arm.factors] for level in step
    )
    return {**dict.fromkeys(other, 1 / len(other)), **dict.fromkeys(first, -1 / len(first))}


def effects(contrast: Planned, values: Mapping[str, Values], folds: Folds) -> tuple[float, float] | None:
    """As in `Planned`, the means over the seeds that all arms have; None of what is no interaction."""
    seeds = [seed for seed, value in weighted(values, contrast.sum.weights).items() if value is not None]
    if contrast.effects is None or not seeds:
        return None
    first, other = (fmean(independent(weighted(values, effect), folds, seeds)) for effect in contrast.effects)
    return first, other
