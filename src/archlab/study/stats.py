"""The statistics of a study: paired differences, their intervals, and verdicts that survive many comparisons.

A study has few seeds, so the primary test is the paired t-test. The usual distribution-free alternatives
cannot answer here: the sign-flip permutation test of n pairs never gives p below 2 / 2^n (0.25 with 3 seeds;
it takes 6 to pass 0.05, more under a correction), and a bootstrap (BCa too) of 3 differences has 10 distinct
resamples and intervals far too short. The price is an assumption: the differences scatter roughly normally.

No comparison borrows scatter from another. With moderated variances (Smyth 2004), and with residuals pooled over arms
and seeds, up to 14 and 21 of 100 studies whose arms are equal but scatter unequally find a difference.

Seeds may be added by a rule, so that the error rate stays what it is (Stein 1945): the scatter over the first seeds
decides how many there are in all, and the test keeps the first seeds' degrees of freedom. The number may depend on
scatter, which tells nothing of a difference, and never on the means. Stein's test keeps the first seeds' scatter too.
That is exact for normal differences, but with heavy tails and several comparisons it was wrong in 9 of 100 studies
whose arms were equal, for the first seeds often lack the rare large difference. So the larger one is taken, of the
first seeds or of all, which is at least as strict.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import scipy  # loads its parts on first use

from archlab.study.outcome_schema import Better
from archlab.study.power import pairs_for, smallest_effect, smallest_effect_interval
from archlab.study.record import Comparison, Verdict
from archlab.study.schema import AddedSeeds

ALPHA = 0.05
"""Family-wise: the probability of any false "better", "worse" or "differs" in a study whose arms are all equal, and
that of any false "equivalent" where all differences are as large as the margin."""

_NO_SCATTER = 1e-12
"""Of the size of the values: a thousand times the rounding of 64-bit subtraction, far below any real scatter."""

Values = Mapping[int, float | None]
"""Seed -> what its run gave, of any outcome; None where the run diverged or gave nothing."""


Folds = Mapping[int, int] | None
"""Seed -> the part of the text that judges it, where several seeds share one; else None. Differences on one part are no
independent evidence of other text, so that what is tested are their means, one for each part."""

Weights = Mapping[str, float]
"""Arm -> weight. What is compared is the sum, over the arms, of each one's value times its weight, seed by seed."""


class Contrast(NamedTuple):
    """A comparison of more than two arms."""

    weights: Weights
    reference: str
    """What the arms of negative weight have in common, in words."""


class Estimate(NamedTuple):
    """A mean, its interval, the two-sided p-value against zero, and what they come from."""

    mean: float
    low: float | None
    high: float | None
    p: float
    deviation: float
    """Standard deviation of the values; 0 where there is none but rounding."""
    error: float
    """Standard error of the mean."""
    freedom: int
    """Degrees of freedom."""


def compare(
    values: Mapping[str, Values],
    references: Mapping[str, str],
    better: Better = "lower",
    margin: float | None = None,
    first: Collection[int] | None = None,
    contrasts: Mapping[str, Contrast] | None = None,
    folds: Folds = None,
) -> dict[str, Comparison]:
    """Every arm of `references` (arm -> the arm it is compared with) against its reference, paired by seed, and every
    contrast, by name.

    `margin`, in the values' unit: differences up to it are too small to matter; None judges no equivalence. `first`:
    the seeds whose scatter decided how many there are in all (`seeds_in_all`); None where that was planned.

    Holm's correction runs over all of them together, once for differences and once for equivalence. A comparison that
    could not be tested still counts as one of them, so that a study does not become more lenient where runs diverged
    or are missing. Every interval is of the level at which Holm judges its comparison, so that it leaves out zero where
    the verdict is that there is a difference, and nowhere else.
    """
    planned = {**pairwise(references), **(contrasts or {})}
    samples = {name: _sample(values, contrast.weights, first, folds) for name, contrast in planned.items()}
    tests = {arm: sample.estimate(ALPHA) for arm, sample in samples.items()}
    p_values = [1.0 if test is None else test.p for test in tests.values()]
    inside = [None if test is None or margin is None else _p_equivalent(test, margin) for test in tests.values()]
    corrected, equivalent = holm(p_values), holm([1.0 if p is None else p for p in inside])
    found = {}
    for index, (name, contrast) in enumerate(planned.items()):
        sample, test = samples[name], tests[name]
        p_holm = None if test is None else corrected[index]
        p_equivalent = None if inside[index] is None else equivalent[index]
        level = _level(p_values, index)
        shown = sample.estimate(level)
        within = sample.estimate(2 * _level([1.0 if p is None else p for p in inside], index))
        effect = (test.deviation, len(sample.values), test.freedom, level) if test and test.deviation else None
        reach = smallest_effect_interval(*effect) if effect else None
        found[name] = Comparison(
            reference=contrast.reference,
            pairs=sample.pairs,
            folds=None if folds is None else len(sample.values),
            difference=float(np.mean(sample.values)) if test is None and sample.values else test and test.mean,
            low=shown and shown.low,
            high=shown and shown.high,
            confidence=None if shown is None or shown.low is None else 1 - level,
            p=test and test.p,
            p_holm=p_holm,
            smallest_effect=smallest_effect(*effect) if effect else None,
            smallest_effect_low=reach and reach[0],
            smallest_effect_high=reach and reach[1],
            margin=margin,
            p_equivalent=p_equivalent,
            within_low=None if p_equivalent is None else within and within.low,
            within_high=None if p_equivalent is None else within and within.high,
            verdict=_verdict(*_sides(values, contrast.weights), test, p_holm, p_equivalent, better),
        )
    return found


def exactly(
    values: Mapping[str, Values],
    references: Mapping[str, str],
    better: Better,
    contrasts: Mapping[str, Contrast] | None = None,
) -> dict[str, Comparison]:
    """As `compare`, of outcomes that have one exact value for each arm, so that nothing is to be tested."""
    found = {}
    for name, contrast in {**pairwise(references), **(contrasts or {})}.items():
        (difference,) = weighted(values, contrast.weights).values()
        assert difference is not None
        rounding = _NO_SCATTER * max(abs(value or 0.0) for arm in values.values() for value in arm.values())
        found[name] = Comparison(
            reference=contrast.reference,
            pairs=1,
            difference=difference,
            low=None,
            high=None,
            confidence=None,
            p=None,
            p_holm=None,
            smallest_effect=None,
            verdict="equal" if abs(difference) <= rounding else _direction(difference, better),
        )
    return found


def estimate(
    values: Sequence[float], alpha: float = ALPHA, size: float | None = None, first: Sequence[float] | None = None
) -> Estimate | None:
    """The one-sample t estimate of `values` (Student 1908), with the interval that leaves out zero where p is below
    `alpha`; None with fewer than two.

    `size` is that of the numbers that they were computed from, their own where it is None. `first` are those of them
    whose scatter decided how many there are: their degrees of freedom are used, and their scatter where it is larger.

    Values without any scatter have no t. All zero, as from one config under two names, they are exactly zero:
    interval [0, 0], p = 1. All equal to something else is no evidence of a noiseless difference but of a
    metric that hides the noise: no interval, and p of the sign-flip test, 2 / 2^n, which assumes nothing of
    scatter.
    """
    n, first = len(values), values if first is None else first
    if len(first) < 2:
        return None
    mean, deviation = float(np.mean(values)), max(float(np.std(some, ddof=1)) for some in (values, first))
    freedom, rounding = len(first) - 1, _NO_SCATTER * (max(map(abs, values)) if size is None else size)
    if deviation > rounding:
        error = deviation / sqrt(n)
        reach = float(scipy.stats.t.isf(alpha / 2, freedom)) * error
        p = float(2 * scipy.stats.t.sf(abs(mean) / error, freedom))
        return Estimate(mean, mean - reach, mean + reach, p, deviation, error, freedom)
    if abs(mean) <= rounding:
        return Estimate(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, freedom)
    return Estimate(mean, None, None, 2.0 ** (1 - n), 0.0, 0.0, freedom)


def pairwise(references: Mapping[str, str]) -> dict[str, Contrast]:
    """Arm -> its comparison with its reference."""
    return {arm: Contrast({arm: 1.0, reference: -1.0}, reference) for arm, reference in references.items()}


def weighted(values: Mapping[str, Values], weights: Weights) -> dict[int, float | None]:
    """Seed -> the weighted sum, of the seeds of which every arm has a run; None where one of them diverged."""
    seeds = sorted(set.intersection(*(set(values[arm]) for arm in weights)))
    return {seed: _sum((values[arm][seed], weight) for arm, weight in weights.items()) for seed in seeds}


def _sum(terms: Iterable[tuple[float | None, float]]) -> float | None:
    total = 0.0
    for value, weight in terms:
        if value is None:
            return None
        total += weight * value
    return total


def known(values: Values, seeds: Collection[int] | None = None) -> list[float]:
    """Those that there are, by seed; `seeds`: of these only."""
    return [value for seed, value in sorted(values.items()) if value is not None and (seeds is None or seed in seeds)]


def independent(values: Values, folds: Folds, seeds: Collection[int] | None = None) -> list[float]:
    """The known values, the mean of those that share a fold; `seeds`: of these only."""
    if folds is None:
        return known(values, seeds)
    shared = defaultdict[int, list[float]](list)
    for seed, value in sorted(values.items()):
        if value is not None and (seeds is None or seed in seeds):
            shared[folds[seed]].append(value)
    return [float(np.mean(one)) for one in shared.values()]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): all below alpha hold together with family-wise error alpha."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = highest
    return corrected


def share(k: int, n: int) -> tuple[float, float]:
    """The exact 95% interval of a probability of which k in n cases were seen (Clopper & Pearson 1934)."""
    found = scipy.stats.binomtest(k, n).proportion_ci(method="exact")
    return float(found.low), float(found.high)


def seeds_in_all(
    values: Mapping[str, Values], compared: Mapping[str, Contrast], rule: AddedSeeds, n_folds: int | None = None
) -> int:
    """How many seeds every arm gets: as many as the comparison that needs most, at most `rule.at_most`, and no more
    than there are folds of the text to judge them, `n_folds`, for seeds that share one tell nothing of other text.

    `values` has those of the first seeds, `compared` are all comparisons. Each is planned at the strictest level at
    which Holm's correction may judge it. One with fewer than two pairs tells nothing of its scatter and asks for none.
    """
    first = range(rule.first)
    needed = [rule.first]
    for contrast in compared.values():
        found = known(weighted(values, contrast.weights), first)
        if len(found) > 1:
            level = ALPHA / len(compared)
            needed.append(pairs_for(rule.until, float(np.std(found, ddof=1)), len(found) - 1, level))
    most = rule.at_most if n_folds is None else min(rule.at_most, max(n_folds, rule.first))
    return min(most, max(needed))


class _Sample(NamedTuple):
    """The differences of one comparison: by seed, or their means by fold."""

    values: list[float]
    first: list[float]
    """Those of them whose scatter decided how many there are; all where that was planned."""
    size: float
    """The largest number that they were computed from."""
    pairs: int
    """Seeds that have one."""

    def estimate(self, alpha: float) -> Estimate | None:
        return estimate(self.values, alpha, self.size, self.first)


def _sample(values: Mapping[str, Values], weights: Weights, first: Collection[int] | None, folds: Folds) -> _Sample:
    size = max((abs(value) for arm in weights for value in known(values[arm])), default=0.0)
    found = weighted(values, weights)
    return _Sample(independent(found, folds), independent(found, folds, first), size, len(known(found)))


def _sides(values: Mapping[str, Values], weights: Weights) -> tuple[Values, Values]:
    """What is compared: an arm and its reference. Of more arms, where a run of any is as bad as one of another, their
    weighted sum with nothing."""
    if len(weights) == 2:
        arm, reference = weights
        return values[arm], values[reference]
    found = weighted(values, weights)
    return found, dict.fromkeys(found, 0.0)


def _p_equivalent(test: Estimate, margin: float) -> float | None:
    """The larger p-value of the two one-sided tests that the true difference is beyond the margin (Schuirmann 1987).

    None where a difference has no scatter to be tested by; exact zeros are equivalent.
    """
    if test.deviation:
        return float(scipy.stats.t.sf((margin - abs(test.mean)) / test.error, test.freedom))
    return 0.0 if test.mean == 0 else None


def _level(p_values: Sequence[float], index: int) -> float:
    """The p-value below which Holm would have let this comparison pass, the others being what they are."""
    others = [1.0 if i == index else p for i, p in enumerate(p_values)]
    return ALPHA / (len(others) - sum(p < ALPHA for p in holm(others)))


def _verdict(
    arm: Values,
    reference: Values,
    test: Estimate | None,
    p_holm: float | None,
    p_equivalent: float | None,
    better: Better,
) -> Verdict:
    """A run that diverged where the other finished outweighs the values of the seeds that survived."""
    if _lost(arm, reference):
        return "diverged"
    if test is None or p_holm is None:
        if None in arm.values():
            return "diverged"
        return "reference diverged" if None in reference.values() else "too few runs"
    if p_holm >= ALPHA:
        return "equivalent" if p_equivalent is not None and p_equivalent < ALPHA else "not distinguishable"
    found = _direction(test.mean, better)
    return "reference diverged" if found == "worse" and _lost(reference, arm) else found


def _direction(difference: float, better: Better) -> Verdict:
    """What a difference is, if it is one."""
    if better == "neither":
        return "differs"
    return "better" if (difference < 0) == (better == "lower") else "worse"


def _lost(values: Values, other: Values) -> bool:
    """Whether a run diverged on a seed that the other finished."""
    return any(value is None and other.get(seed) is not None for seed, value in values.items())
