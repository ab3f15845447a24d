"""Statistics of a study: paired differences, their intervals, and verdicts corrected for multiple comparisons.

A study has few seeds, so the primary test is the paired t-test, which assumes that the differences are roughly normal.
The usual tests without this assumption fail with few seeds. The sign-flip permutation test of n pairs never gives p
below 2 / 2^n, which is 0.25 with 3 seeds. It needs 6 seeds to get below 0.05, and more with a correction. A bootstrap
of 3 differences (also BCa) has only 10 distinct resamples, and its intervals are far too short.

The standard deviation of each comparison is estimated from its own differences only. Alternatives were simulated with
arms of equal means but unequal variances. With moderated variances (Smyth 2004), up to 14 of 100 studies found a
difference. With residuals pooled over arms and seeds, up to 21 of 100 did.

A rule can add seeds without changing the error rate (Stein 1945). The standard deviation over the first seeds decides
the total number of seeds, and the test keeps the degrees of freedom of the first seeds. The total may depend on the
standard deviation, which says nothing about a mean difference, but never on the means. Stein's test also uses the
standard deviation of the first seeds, which is correct for normal differences. With heavy tails and several
comparisons, this test found a difference in 9 of 100 studies of equal arms, because the first seeds often lack the rare
large differences. So archlab uses the larger of two standard deviations: that of the first seeds and that of all seeds.
Its test is at least as strict as Stein's.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import scipy  # loads its parts on first use

from archlab.study.outcomes.schema import Better
from archlab.study.power import pairs_for, smallest_effect, smallest_effect_interval
from archlab.study.record import Comparison, Verdict
from archlab.study.schema import AddedSeeds

ALPHA = 0.05
"""Family-wise error rate: the probability that a study of equally good arms has any verdict "better", "worse" or
"differs". It is also the probability of any verdict "equivalent" if all true differences are as large as the margin."""

_NO_SCATTER = 1e-12
"""Smallest standard deviation, relative to the values, that is not treated as zero. It is a thousand times the rounding
error of 64-bit subtraction, and far below the differences between real runs."""

Values = Mapping[int, float | None]
"""Value of an outcome by seed or round of timing; None if the run diverged. A value that is missing for another reason
has no entry."""


Folds = Mapping[int, int] | None
"""Fold of each seed, if several seeds share a fold; otherwise None. Differences on the same fold are not independent
evidence about new text. So the test uses their mean, one value per fold."""

Weights = Mapping[str, float]
"""Weight of each arm in a comparison. For each seed, the compared value is the weighted sum of the arms' values."""


class Contrast(NamedTuple):
    """A comparison of two or more arms: a weighted sum of their values, which is tested against zero."""

    weights: Weights
    reference: str
    """Description of the arms with negative weights."""


class Estimate(NamedTuple):
    """A mean with its confidence interval, its two-sided p-value against zero, and the statistics of the t-test."""

    mean: float
    low: float | None
    high: float | None
    p: float
    deviation: float
    """Standard deviation of the values; 0 if it is only rounding error."""
    error: float
    freedom: int
    """Degrees of freedom of the t-test."""


def compare(
    values: Mapping[str, Values],
    contrasts: Mapping[str, Contrast],
    better: Better = "lower",
    margin: float | None = None,
    first: Collection[int] | None = None,
    folds: Folds = None,
    level: float | None = None,
) -> dict[str, Comparison]:
    """Compare every contrast with zero, paired by seed. Return the comparisons by name.

    `pairwise` returns the contrasts of arms with their references, and `comparisons` returns all contrasts of a study.
    `margin` is the largest difference that does not matter, in the unit of the values; None skips the equivalence
    tests. `first` holds the seeds whose standard deviation decided the total number of seeds (`seeds_in_all`); None if
    the number was fixed in advance.

    Holm's correction covers all comparisons together, once for the tests of a difference and once for the tests of
    equivalence. A comparison that could not be tested still counts. Otherwise a study would become less strict if runs
    diverged or are missing. Each interval has the confidence level at which Holm's correction judges its comparison. So
    an interval excludes zero exactly when the verdict is a difference.

    If `level` is given, every comparison is judged at this level instead. It comes from a correction that also covers
    comparisons of other studies.
    """
    samples = {name: _sample(values, contrast.weights, first, folds) for name, contrast in contrasts.items()}
    tests = {arm: sample.estimate(ALPHA) for arm, sample in samples.items()}
    p_values = [1.0 if test is None else test.p for test in tests.values()]
    p_inside = [None if test is None or margin is None else _p_equivalent(test, margin) for test in tests.values()]
    p_within = [1.0 if p is None else p for p in p_inside]
    corrected, equivalent = (_corrected(p, level) for p in (p_values, p_within))
    comparisons = {}
    for index, (name, contrast) in enumerate(contrasts.items()):
        sample, test = samples[name], tests[name]
        p_holm = None if test is None else corrected[index]
        p_equivalent = None if p_inside[index] is None else equivalent[index]
        own_level = level or holm_level(p_values, index)
        interval = sample.estimate(own_level)
        outside = 2 * (level or holm_level(p_within, index))
        inner = None if p_equivalent is None else sample.estimate(outside)
        effect = (test.deviation, len(sample.values), test.freedom, own_level) if test and test.deviation else None
        effect_interval = smallest_effect_interval(*effect) if effect else None
        comparisons[name] = Comparison(
            reference=contrast.reference,
            pairs=sample.pairs,
            folds=None if folds is None else len(sample.values),
            difference=float(np.mean(sample.values)) if test is None and sample.values else test and test.mean,
            low=interval and interval.low,
            high=interval and interval.high,
            confidence=None if interval is None or interval.low is None else 1 - own_level,
            p=test and test.p,
            p_holm=p_holm,
            smallest_effect=smallest_effect(*effect) if effect else None,
            smallest_effect_low=effect_interval and effect_interval[0],
            smallest_effect_high=effect_interval and effect_interval[1],
            margin=margin,
            p_equivalent=p_equivalent,
            within_low=inner and inner.low,
            within_high=inner and inner.high,
            within_confidence=None if inner is None or inner.low is None else 1 - outside,
            verdict=_verdict(*_sides(values, contrast.weights), test, p_holm, p_equivalent, better),
        )
    return comparisons


def t_test(
    values: Mapping[str, Values], contrast: Contrast, first: Collection[int] | None, folds: Folds
) -> Estimate | None:
    """Return the t-test of one comparison, without a correction. The arguments are those of `compare`."""
    return _sample(values, contrast.weights, first, folds).estimate(ALPHA)


def compare_exact(
    values: Mapping[str, Values], contrasts: Mapping[str, Contrast], better: Better
) -> dict[str, Comparison]:
    """Compare the arms by an outcome that is computed from the config. There is no test, because each arm has one exact
    value."""
    comparisons = {}
    for name, contrast in contrasts.items():
        (difference,) = known(weighted(values, contrast.weights)) or (None,)
        rounding = _NO_SCATTER * max((abs(value) for arm in values.values() for value in known(arm)), default=0.0)
        comparisons[name] = Comparison(
            reference=contrast.reference,
            pairs=0 if difference is None else 1,
            difference=difference,
            low=None,
            high=None,
            confidence=None,
            p=None,
            p_holm=None,
            smallest_effect=None,
            verdict=_exact_verdict(difference, rounding, better),
        )
    return comparisons


def _exact_verdict(difference: float | None, rounding: float, better: Better) -> Verdict:
    if difference is None:
        return "too few runs"
    return "equal" if abs(difference) <= rounding else _direction(difference, better)


def estimate(
    values: Sequence[float], alpha: float = ALPHA, size: float | None = None, first: Sequence[float] | None = None
) -> Estimate | None:
    """Return the one-sample t-test of `values` against zero (Student 1908), or None with fewer than two values. The
    interval excludes zero exactly when p is below `alpha`.

    `size` is the magnitude of the numbers from which the values were computed, and decides what is only rounding error.
    If it is None, the magnitude of the values is used. `first` holds the values whose standard deviation decided the
    total number of seeds. Their degrees of freedom are used, and also their standard deviation if it is larger.

    If all values are identical, there is no t statistic. If they are zero, for example because two arms have the same
    config, the interval is [0, 0] and p is 1. If they are not zero, the metric probably hides the noise of training.
    Then there is no interval, and p is that of the sign-flip test, 2 / 2^n, which needs no standard deviation.
    """
    n, first = len(values), values if first is None else first
    if len(first) < 2:
        return None
    mean, deviation = float(np.mean(values)), max(float(np.std(sample, ddof=1)) for sample in (values, first))
    freedom, rounding = len(first) - 1, _NO_SCATTER * (max(map(abs, values)) if size is None else size)
    if deviation > rounding:
        error = deviation / sqrt(n)
        half_width = -float(scipy.special.stdtrit(freedom, alpha / 2)) * error
        p = 2 * upper_tail(abs(mean) / error, freedom)
        return Estimate(mean, mean - half_width, mean + half_width, p, deviation, error, freedom)
    if abs(mean) <= rounding:
        return Estimate(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, freedom)
    return Estimate(mean, None, None, 2.0 ** (1 - n), 0.0, 0.0, freedom)


def upper_tail(t: float, freedom: int) -> float:
    """Return the probability that a variable with Student's t distribution is more than `t`.

    `scipy.stats.t.sf` returns the same number, but takes 80 times as long, and the ledger needs thousands of them.
    """
    return float(scipy.special.stdtr(freedom, -t))


def pairwise(references: Mapping[str, str]) -> dict[str, Contrast]:
    """Return the contrast of each arm with its reference, by arm."""
    return {arm: Contrast({arm: 1.0, reference: -1.0}, reference) for arm, reference in references.items()}


def weighted(values: Mapping[str, Values], weights: Weights) -> dict[int, float | None]:
    """Return the weighted sum of the arms' values for each seed that all arms have. The sum is None if one of the runs
    diverged."""
    seeds = sorted(set.intersection(*(set(values[arm]) for arm in weights)))
    return {seed: _sum((values[arm][seed], weight) for arm, weight in weights.items()) for seed in seeds}


def _sum(terms: Iterable[tuple[float | None, float]]) -> float | None:
    total = 0.0
    for value, weight in terms:
        if value is None:
            return None
        total += weight * value
    return total


def shared_folds(folds: Mapping[int, int]) -> Folds:
    """Return the fold of each seed if several seeds share a fold and the seeds use more than one fold. Otherwise return
    None.

    If no seeds share a fold, each seed is one value of the test anyway. If all seeds share one fold, the seeds are
    independent evidence about this fold.
    """
    return folds if 1 < len(set(folds.values())) < len(folds) else None


def known(values: Values, seeds: Collection[int] | None = None) -> list[float]:
    """Return the values that are not None, ordered by seed. `seeds` restricts the result to these seeds."""
    return [value for seed, value in sorted(values.items()) if value is not None and (seeds is None or seed in seeds)]


def independent(values: Values, folds: Folds, seeds: Collection[int] | None = None) -> list[float]:
    """Return the known values. Values of seeds that share a fold are averaged. `seeds` restricts the result to these
    seeds."""
    if folds is None:
        return known(values, seeds)
    shared = defaultdict[int, list[float]](list)
    for seed, value in sorted(values.items()):
        if value is not None and (seeds is None or seed in seeds):
            shared[folds[seed]].append(value)
    return [float(np.mean(values_of_fold)) for values_of_fold in shared.values()]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's step-down correction (1979). If every hypothesis with a corrected p-value below
    alpha is rejected, the family-wise error rate is at most alpha."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = highest
    return corrected


def holm_level(p_values: Sequence[float], index: int) -> float:
    """Return the level at which Holm's correction judges this comparison, given the p-values of all others. Its null
    hypothesis is rejected if its p-value is below this level."""
    others = [1.0 if i == index else p for i, p in enumerate(p_values)]
    return ALPHA / (len(others) - sum(p < ALPHA for p in holm(others)))


def _corrected(p_values: Sequence[float], level: float | None) -> list[float]:
    return holm(p_values) if level is None else [min(1.0, p * ALPHA / level) for p in p_values]


def share(k: int, n: int) -> tuple[float, float]:
    """Return the exact 95% interval of the probability of an event that occurred in k of n cases (Clopper & Pearson
    1934)."""
    interval = scipy.stats.binomtest(k, n).proportion_ci(method="exact")
    return float(interval.low), float(interval.high)


def seeds_in_all(
    values: Mapping[str, Values], compared: Mapping[str, Contrast], rule: AddedSeeds, n_folds: int | None = None
) -> int:
    """Return the total number of seeds per arm: the largest number that a comparison needs, at most `rule.at_most`.

    The total is also at most `n_folds`, the number of folds on which seeds are evaluated, because seeds that share a
    fold say nothing about new text.

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
    """Values whose standard deviation decided the total number of seeds; all values if the number was fixed in
    advance."""
    size: float
    """Largest magnitude of the numbers from which the differences were computed."""
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
    """Return the values of the two sides of a comparison: an arm and its reference.

    For a contrast of more than two arms, return their weighted sums and zeros. A diverged run then has the same effect,
    whichever arm it belongs to.
    """
    if len(weights) == 2:
        arm, reference = weights
        return values[arm], values[reference]
    sums = weighted(values, weights)
    return sums, dict.fromkeys(sums, 0.0)


def _p_equivalent(test: Estimate, margin: float) -> float | None:
    """Return the p-value of the equivalence test: the larger p-value of two one-sided t-tests against differences
    beyond the margin (Schuirmann 1987).

    If all differences are identical, there is no t statistic. The p-value is then 0 if they are exactly zero, and None
    otherwise.
    """
    if test.deviation:
        return upper_tail((margin - abs(test.mean)) / test.error, test.freedom)
    return 0.0 if test.mean == 0 else None


def _verdict(
    arm: Values,
    reference: Values,
    test: Estimate | None,
    p_holm: float | None,
    p_equivalent: float | None,
    better: Better,
) -> Verdict:
    """Return the verdict.

    If the arm diverged on a seed that the reference finished, the verdict is "diverged", whatever the values of the
    other seeds are. If only the reference diverged on a seed, the arm cannot be "worse".
    """
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
