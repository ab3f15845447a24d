"""The statistics of a study: paired differences, their intervals, and verdicts that survive many comparisons.

A study has few seeds, so the primary test is the paired t-test. The usual distribution-free alternatives
cannot answer here: the sign-flip permutation test of n pairs never gives p below 2 / 2^n (0.25 with 3 seeds;
it takes 6 to pass 0.05, more under a correction), and a bootstrap (BCa too) of 3 differences has 10 distinct
resamples and intervals far too short. The price is an assumption: the differences scatter roughly normally.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy import integrate, optimize, stats

from archlab.study.record import Comparison, Verdict

ALPHA = 0.05
"""Family-wise: the probability of any false "better" or "worse" in a study whose arms are all equal."""

POWER = 0.8
"""With which `smallest_effect` is found."""

_NO_SCATTER = 1e-12
"""Bits per byte: a thousand times the rounding of 64-bit subtraction, far below any real scatter."""

Losses = Mapping[int, float | None]
"""Seed -> final held-out bits per byte; None where the run diverged."""


class Estimate(NamedTuple):
    """A mean, its interval, the two-sided p-value against zero, and the standard deviation."""

    mean: float
    low: float | None
    high: float | None
    p: float
    deviation: float


def compare(losses: Mapping[str, Losses], references: Mapping[str, str]) -> dict[str, Comparison]:
    """Every arm of `references` (arm -> the arm it is compared with) against its reference, paired by seed.

    Holm's correction runs over all of `references`. A comparison that could not be tested still counts as one
    of them, so that a study does not become more lenient where runs diverged or are missing. Every interval is of the
    level at which Holm judges its comparison, so that it leaves out zero where the verdict is better or worse, and
    nowhere else.
    """
    differences = {arm: _differences(losses[arm], losses[reference]) for arm, reference in references.items()}
    tests = {arm: estimate(values) for arm, values in differences.items()}
    p_values = [1.0 if test is None else test.p for test in tests.values()]
    corrected = dict(zip(tests, holm(p_values), strict=True))
    found = {}
    for index, (arm, reference) in enumerate(references.items()):
        test, pairs = tests[arm], len(differences[arm])
        p_holm = None if test is None else corrected[arm]
        level = _level(p_values, index)
        shown = estimate(differences[arm], level)
        found[arm] = Comparison(
            reference=reference,
            pairs=pairs,
            difference=float(np.mean(differences[arm])) if test is None and pairs else test and test.mean,
            low=shown and shown.low,
            high=shown and shown.high,
            confidence=None if shown is None or shown.low is None else 1 - level,
            p=test and test.p,
            p_holm=p_holm,
            smallest_effect=smallest_effect(test.deviation, pairs, level) if test and test.deviation else None,
            verdict=_verdict(losses[arm], losses[reference], test, p_holm),
        )
    return found


def estimate(values: Sequence[float], alpha: float = ALPHA) -> Estimate | None:
    """The one-sample t estimate of `values` (Student 1908), with the interval that leaves out zero where p is below
    `alpha`; None with fewer than two.

    Values without any scatter have no t. All zero, as from one config under two names, they are exactly zero:
    interval [0, 0], p = 1. All equal to something else is no evidence of a noiseless difference but of a
    metric that hides the noise: no interval, and p of the sign-flip test, 2 / 2^n, which assumes nothing of
    scatter.
    """
    n = len(values)
    if n < 2:
        return None
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    if deviation > _NO_SCATTER:
        error = deviation / sqrt(n)
        reach = float(stats.t.isf(alpha / 2, n - 1)) * error
        return Estimate(mean, mean - reach, mean + reach, float(2 * stats.t.sf(abs(mean) / error, n - 1)), deviation)
    if abs(mean) <= _NO_SCATTER:
        return Estimate(0.0, 0.0, 0.0, 1.0, 0.0)
    return Estimate(mean, None, None, 2.0 ** (1 - n), 0.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): all below alpha hold together with family-wise error alpha."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = highest
    return corrected


def smallest_effect(deviation: float, pairs: int, alpha: float = ALPHA) -> float:
    """The true difference that a new study of this design finds with 80% probability, by a two-sided t-test at `alpha`.

    `deviation` is the standard deviation of the differences that one study observed. It misses the true one, and with
    few pairs by much: taken for it, the result would be found in 63% of studies of 3 pairs. So the 80% are those of
    both together, of observing a deviation and of a new study's test: over many studies, a true difference as large
    as each has stated is found by four new ones in five.
    """
    return _noncentrality(pairs, alpha) * deviation / sqrt(pairs)


@lru_cache
def _noncentrality(pairs: int, alpha: float) -> float:
    """Mean of the t statistic, in observed standard errors, at which its test has power POWER on average.

    The average is over the observed deviation's distance from the true one: its square, over the true one's, is a
    chi-square of n - 1 degrees divided by n - 1. t^2 follows the noncentral F distribution, both tails in one;
    scipy's noncentral t is nan in the far tail.
    """
    freedom = pairs - 1
    critical = float(stats.t.isf(alpha / 2, freedom))

    def power(noncentrality: float, share: np.ndarray) -> np.ndarray:
        """Where the observed variance is at these quantiles, 0 to 1, of those that may be observed."""
        ratio = stats.chi2.ppf(share, freedom) / freedom
        return stats.ncf.sf(critical**2, 1, freedom, noncentrality**2 * ratio)

    def lacking(noncentrality: float) -> float:
        found, _ = integrate.fixed_quad(lambda share: power(noncentrality, share), 0, 1, n=64)
        return float(found) - POWER

    return float(optimize.brentq(lacking, 1e-6, 4 * critical + 4))  # pyright: ignore[reportArgumentType]


def _level(p_values: Sequence[float], index: int) -> float:
    """The p-value below which Holm would have let this comparison pass, the others being what they are."""
    others = [1.0 if i == index else p for i, p in enumerate(p_values)]
    return ALPHA / (len(others) - sum(p < ALPHA for p in holm(others)))


def _differences(arm: Losses, reference: Losses) -> list[float]:
    """Arm minus reference on the seeds where both finished."""
    pairs = [(loss, reference.get(seed)) for seed, loss in sorted(arm.items())]
    return [loss - other for loss, other in pairs if loss is not None and other is not None]


def _verdict(arm: Losses, reference: Losses, test: Estimate | None, p_holm: float | None) -> Verdict:
    """A run that diverged where the other finished outweighs the losses of the seeds that survived."""
    if _lost(arm, reference):
        return "diverged"
    if test is None or p_holm is None:
        if None in arm.values():
            return "diverged"
        return "reference diverged" if None in reference.values() else "too few runs"
    if p_holm >= ALPHA:
        return "not distinguishable"
    if test.mean < 0:
        return "better"
    return "reference diverged" if _lost(reference, arm) else "worse"


def _lost(losses: Losses, other: Losses) -> bool:
    """Whether a run diverged on a seed that the other finished."""
    return any(loss is None and other.get(seed) is not None for seed, loss in losses.items())
