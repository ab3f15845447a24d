"""Statistics of a study: paired differences, their intervals, and verdicts corrected for multiple comparisons.

A study has few seeds, so the primary test is the paired t-test. The usual distribution-free alternatives fail with few
seeds. The sign-flip permutation test of n pairs never gives p below 2 / 2^n, which is 0.25 with 3 seeds. It needs 6
seeds to get below 0.05, and more with a correction. A bootstrap of 3 differences (also BCa) has 10 distinct resamples,
and its intervals are far too short. The t-test assumes that the differences are roughly normal.

Each comparison estimates its scatter from its own differences only. With moderated variances (Smyth 2004), up to 14 of
100 studies find a difference between arms that are equal but scatter unequally. With residuals pooled over arms and
seeds, up to 21 do.

A rule can add seeds without changing the error rate (Stein 1945). The scatter over the first seeds decides the total
number, and the test keeps the degrees of freedom of the first seeds. The total number may depend on the scatter, which
says nothing about a difference, but never on the means. In Stein's test, the scatter is also that of the first seeds,
which is exact for normal differences. With heavy tails and several comparisons, that test was wrong in 9 of 100 studies
of equal arms, because the first seeds often lack the rare large difference. So archlab uses the larger scatter, that of
the first seeds or that of all seeds. This choice is at least as strict.
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
"""Family-wise error rate: the probability of any false "better", "worse" or "differs" in a study of equal arms. It is
also the probability of any false "equivalent" if all differences are as large as the margin."""

_NO_SCATTER = 1e-12
"""Smallest standard deviation that counts as scatter, relative to the values. It is a thousand times the rounding error
of 64-bit subtraction, and far below any real scatter."""

Values = Mapping[int, float | None]
"""Value of an outcome by seed; None if the run diverged or has no value."""


Folds = Mapping[int, int] | None
"""Fold of each seed, if several seeds share a fold; otherwise None. Differences on one fold are not independent
evidence about other text, so the test uses one mean difference per fold."""

Weights = Mapping[str, float]
"""Weight of each arm. The compared value is the weighted sum of the arms' values, seed by seed."""


class Contrast(NamedTuple):
    """A comparison of two or more arms: a weighted sum that is tested against zero."""

    weights: Weights
    reference: str
    """Description of the arms with negative weights."""


class Estimate(NamedTuple):
    """A mean with its interval, its two-sided p-value against zero, and the numbers behind them."""

    mean: float
    low: float | None
    high: float | None
    p: float
    deviation: float
    """Standard deviation of the values; 0 if the deviation is only rounding error."""
    error: float
    freedom: int
    """Degrees of freedom of the t-test."""


def compare(
    values: Mapping[str, Values],
    references: Mapping[str, str],
    better: Better = "lower",
    margin: float | None = None,
    first: Collection[int] | None = None,
    contrasts: Mapping[str, Contrast] | None = None,
    folds: Folds = None,
) -> dict[str, Comparison]:
    """Compare every arm with its reference, paired by seed, and every contrast with zero. Return the comparisons by
    name.

    `references` maps each arm to its reference. `margin` is the largest difference that does not matter, in the unit of
    the values; None skips the equivalence tests. `first` holds the seeds whose scatter decided the total number of
    seeds (`seeds_in_all`); None if the number was planned.

    Holm's correction covers all comparisons together, once for differences and once for equivalence. A comparison that
    could not be tested still counts, so a study does not become more lenient if runs diverged or are missing. Each
    interval has the level at which Holm's correction judges its comparison. So an interval excludes zero exactly when
    the verdict is a difference.
    """
    planned = {**pairwise(references), **(contrasts or {})}
    samples = {name: _sample(values, contrast.weights, first, folds) for name, contrast in planned.items()}
    tests = {arm: sample.estimate(ALPHA) for arm, sample in samples.items()}
    p_values = [1.0 if test is None else test.p for test in tests.values()]
    p_inside = [None if test is None or margin is None else _p_equivalent(test, margin) for test in tests.values()]
    corrected, equivalent = holm(p_values), holm([1.0 if p is None else p for p in p_inside])
    comparisons = {}
    for index, (name, contrast) in enumerate(planned.items()):
        sample, test = samples[name], tests[name]
        p_holm = None if test is None else corrected[index]
        p_equivalent = None if p_inside[index] is None else equivalent[index]
        level = _level(p_values, index)
        interval = sample.estimate(level)
        inner = sample.estimate(2 * _level([1.0 if p is None else p for p in p_inside], index))
        effect = (test.deviation, len(sample.values), test.freedom, level) if test and test.deviation else None
        effect_interval = smallest_effect_interval(*effect) if effect else None
        comparisons[name] = Comparison(
            reference=contrast.reference,
            pairs=sample.pairs,
            folds=None if folds is None else len(sample.values),
            difference=float(np.mean(sample.values)) if test is None and sample.values else test and test.mean,
            low=interval and interval.low,
            high=interval and interval.high,
            confidence=None if interval is None or interval.low is None else 1 - level,
            p=test and test.p,
            p_holm=p_holm,
            smallest_effect=smallest_effect(*effect) if effect else None,
            smallest_effect_low=effect_interval and effect_interval[0],
            smallest_effect_high=effect_interval and effect_interval[1],
            margin=margin,
            p_equivalent=p_equivalent,
            within_low=None if p_equivalent is None else inner and inner.low,
            within_high=None if p_equivalent is None else inner and inner.high,
            verdict=_verdict(*_sides(values, contrast.weights), test, p_holm, p_equivalent, better),
        )
    return comparisons


def compare_exact(
    values: Mapping[str, Values],
    references: Mapping[str, str],
    better: Better,
    contrasts: Mapping[str, Contrast] | None = None,
) -> dict[str, Comparison]:
    """Compare outcomes that have one exact value per arm. The result is like that of `compare`, but without a test."""
    comparisons = {}
    for name, contrast in {**pairwise(references), **(contrasts or {})}.items():
        (difference,) = weighted(values, contrast.weights).values()
        assert difference is not None
        rounding = _NO_SCATTER * max(abs(value or 0.0) for arm in values.values() for value in arm.values())
        comparisons[name] = Comparison(
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
    return comparisons


def estimate(
    values: Sequence[float], alpha: float = ALPHA, size: float | None = None, first: Sequence[float] | None = None
) -> Estimate | None:
    """Return the one-sample t estimate of `values` (Student 1908), or None with fewer than two values. The interval
    excludes zero exactly when p is below `alpha`.

    `size` is the magnitude of the numbers from which the values were computed; None uses the magnitude of the values.
    `first` holds the values whose scatter decided the total number. Their degrees of freedom are used, and also their
    scatter if it is larger.

    Values without scatter have no t statistic. If all values are zero, for example because two arms have the same
    config, the interval is [0, 0] and p is 1. If all values equal another number, the metric probably hides the noise.
    Then there is no interval, and p is that of the sign-flip test, 2 / 2^n, which assumes nothing about the scatter.
    """
    n, first = len(values), values if first is None else first
    if len(first) < 2:
        return None
    mean, deviation = float(np.mean(values)), max(float(np.std(sample, ddof=1)) for sample in (values, first))
    freedom, rounding = len(first) - 1, _NO_SCATTER * (max(map(abs, values)) if size is None else size)
    if deviation > rounding:
        error = deviation / sqrt(n)
        half_width = float(scipy.stats.t.isf(alpha / 2, freedom)) * error
        p = float(2 * scipy.stats.t.sf(abs(mean) / error, freedom))
        return Estimate(mean, mean - half_width, mean + half_width, p, deviation, error, freedom)
    if abs(mean) <= rounding:
        return Estimate(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, freedom)
    return Estimate(mean, None, None, 2.0 ** (1 - n), 0.0, 0.0, freedom)


def pairwise(references: Mapping[str, str]) -> dict[str, Contrast]:
    """Return the contrast of each arm with its reference, by arm."""
    return {arm: Contrast({arm: 1.0, reference: -1.0}, reference) for arm, reference in references.items()}


def weighted(values: Mapping[str, Values], weights: Weights) -> dict[int, float | None]:
    """Return the weighted sum over the arms for each seed with which every arm was run; None if a run diverged."""
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
    """Return the values that are not None, ordered by seed. `seeds` restricts the result to these seeds."""
    return [value for seed, value in sorted(values.items()) if value is not None and (seeds is None or seed in seeds)]


def independent(values: Values, folds: Folds, seeds: Collection[int] | None = None) -> list[float]:
    """Return the known values, averaged over the seeds that share a fold. `seeds` restricts the result to these
    seeds."""
    if folds is None:
        return known(values, seeds)
    shared = defaultdict[int, list[float]](list)
    for seed, value in sorted(values.items()):
        if value is not None and (seeds is None or seed in seeds):
            shared[folds[seed]].append(value)
    return [float(np.mean(values_of_fold)) for values_of_fold in shared.values()]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction (1979). Rejecting all hypotheses with p below alpha has
    family-wise error rate alpha."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = highest
    return corrected


def share(k: int, n: int) -> tuple[float, float]:
    """Return the exact 95% interval of an event's probability if the event occurred in k of n cases (Clopper & Pearson
    1934)."""
    interval = scipy.stats.binomtest(k, n).proportion_ci(method="exact")
    return float(interval.low), float(interval.high)


def seeds_in_all(
    values: Mapping[str, Values], compared: Mapping[str, Contrast], rule: AddedSeeds, n_folds: int | None = None
) -> int:
    """Return the number of seeds for every arm: the largest number that a comparison needs, at most `rule.at_most`.

    The number is also at most `n_folds`, the number of folds on which seeds are evaluated, because seeds that share a
    fold say nothing about other text.

    `values` holds the values of the first seeds, and `compared` holds all comparisons. Each comparison is planned at
    the strictest level at which Holm's correction may judge it. A comparison with fewer than two pairs is ignored.
    """
    first = range(rule.first)
    needed = [rule.first]
    for contrast in compared.values():
        differences = known(weighted(values, contrast.weights), first)
        if len(differences) > 1:
            level = ALPHA / len(compared)
            needed.append(pairs_for(rule.until, float(np.std(differences, ddof=1)), len(differences) - 1, level))
    largest = rule.at_most if n_folds is None else min(rule.at_most, max(n_folds, rule.first))
    return min(largest, max(needed))


class _Sample(NamedTuple):
    """Differences of one comparison: one per seed, or one mean per fold."""

    values: list[float]
    first: list[float]
    """Values whose scatter decided the total number; all values if the number was planned."""
    size: float
    """Largest magnitude of the numbers from which the values were computed."""
    pairs: int
    """Number of seeds on which the difference is known."""

    def estimate(self, alpha: float) -> Estimate | None:
        return estimate(self.values, alpha, self.size, self.first)


def _sample(values: Mapping[str, Values], weights: Weights, first: Collection[int] | None, folds: Folds) -> _Sample:
    size = max((abs(value) for arm in weights for value in known(values[arm])), default=0.0)
    differences = weighted(values, weights)
    first_differences = independent(differences, folds, first)
    return _Sample(independent(differences, folds), first_differences, size, len(known(differences)))


def _sides(values: Mapping[str, Values], weights: Weights) -> tuple[Values, Values]:
    """Return the two sides of a comparison: an arm and its reference.

    With more than two arms, return their weighted sum and zeros, because a diverged run of any arm is equally bad.
    """
    if len(weights) == 2:
        arm, reference = weights
        return values[arm], values[reference]
    sums = weighted(values, weights)
    return sums, dict.fromkeys(sums, 0.0)


def _p_equivalent(test: Estimate, margin: float) -> float | None:
    """Return the larger p-value of the two one-sided tests against true differences beyond the margin (Schuirmann
    1987).

    The p-value is None for a nonzero difference without scatter, and 0 for exact zeros, which are equivalent.
    """
    if test.deviation:
        return float(scipy.stats.t.sf((margin - abs(test.mean)) / test.error, test.freedom))
    return 0.0 if test.mean == 0 else None


def _level(p_values: Sequence[float], index: int) -> float:
    """Return the p-value below which Holm's correction would reject this comparison's null hypothesis, given the other
    p-values."""
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
    """Return the verdict. A run that diverged on a seed that the other arm finished outweighs the values of all other
    seeds."""
    if _diverged_alone(arm, reference):
        return "diverged"
    if test is None or p_holm is None:
        if None in arm.values():
            return "diverged"
        return "reference diverged" if None in reference.values() else "too few runs"
    if p_holm >= ALPHA:
        return "equivalent" if p_equivalent is not None and p_equivalent < ALPHA else "not distinguishable"
    verdict = _direction(test.mean, better)
    return "reference diverged" if verdict == "worse" and _diverged_alone(reference, arm) else verdict


def _direction(difference: float, better: Better) -> Verdict:
    if better == "neither":
        return "differs"
    return "better" if (difference < 0) == (better == "lower") else "worse"


def _diverged_alone(values: Values, other: Values) -> bool:
    return any(value is None and other.get(seed) is not None for seed, value in values.items())
