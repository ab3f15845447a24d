"""Power of the t-test: the differences that a study can detect, and the number of pairs needed to detect a given
difference."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
import scipy  # loads its parts on first use

POWER = 0.8
"""Probability with which a test should detect a true difference of the planned size."""

_COVERED = 0.95


def smallest_effect(deviation: float, pairs: int, freedom: int, alpha: float) -> float:
    """Return the smallest true difference that a new study of the same design detects with 80% probability in a
    two-sided t-test at `alpha`.

    `deviation` is the standard deviation of the differences in a finished study, and `freedom` its degrees of freedom.
    With few pairs, this estimate can be far from the true deviation. If it were treated as the true one, a new study of
    3 pairs would detect the returned difference with a probability of only 63%. So the 80% account for two sources of
    chance: the estimate of the deviation and the data of the new study. If many studies each report such a difference,
    and it is the true one, 80% of their repetitions detect it.
    """
    return _mean_for_observed_deviation(freedom, alpha) * deviation / sqrt(pairs)


def smallest_found(error: float, freedom: int, alpha: float, margin: float) -> float:
    """Return the smallest true difference that a new study of the same design finds with 80% probability, if a result
    must also be at least as large as the margin.

    `error` is the standard error of the mean difference in a finished study. As in `smallest_effect`, the 80% account
    for the chance in the estimate of the deviation, too. A result in the wrong direction is not found.
    """
    nodes, weights = (values / 2 for values in np.polynomial.legendre.leggauss(64))
    scatter = np.sqrt(scipy.stats.chi2.ppf(nodes + 0.5, freedom) / freedom)  # observed deviation per true deviation
    true_errors = error / scatter[:, None]
    needed = np.maximum(margin, float(scipy.stats.t.isf(alpha / 2, freedom)) * true_errors * scatter[None, :])

    def power(effect: float) -> float:
        return float(weights @ scipy.special.ndtr((effect - needed) / true_errors) @ weights)

    return _with_power(power, error + margin)


def pairs_for(effect: float, deviation: float, freedom: int, alpha: float) -> int:
    """Return the number of pairs for which `smallest_effect` returns `effect`, rounded up."""
    return ceil((_mean_for_observed_deviation(freedom, alpha) * deviation / effect) ** 2)


def smallest_effect_interval(deviation: float, pairs: int, freedom: int, alpha: float) -> tuple[float, float]:
    """Return a 95% interval for the smallest detectable difference, which shows how uncertain the deviation is.

    The interval is for the difference that the test would detect with 80% probability if the true deviation were known.
    This difference is proportional to the true deviation. The interval of the true deviation comes from the chi-square
    distribution of the observed variance. Few pairs estimate the deviation badly: with 3 pairs, the upper end is 12
    times the lower.
    """
    tail = (1 - _COVERED) / 2
    scale = _mean_for_true_deviation(freedom, alpha) * deviation / sqrt(pairs)
    low, high = (sqrt(freedom / float(scipy.stats.chi2.isf(share, freedom))) for share in (tail, 1 - tail))
    return scale * low, scale * high


@lru_cache
def _mean_for_observed_deviation(freedom: int, alpha: float) -> float:
    """Return the true mean at which the test has the power POWER, in units of the observed standard error.

    The power is averaged over the observed deviation. The observed variance, divided by the true one, is distributed
    like a chi-square variable divided by its degrees of freedom.
    """

    def power(mean: float) -> float:
        def at(share: np.ndarray) -> np.ndarray:
            return _power(mean * np.sqrt(scipy.stats.chi2.ppf(share, freedom) / freedom), freedom, alpha)

        return float(scipy.integrate.fixed_quad(at, 0, 1, n=64)[0])

    return _mean_with_power(power)


@lru_cache
def _mean_for_true_deviation(freedom: int, alpha: float) -> float:
    return _mean_with_power(lambda mean: float(_power(np.array(mean), freedom, alpha)))


def _power(mean: np.ndarray, freedom: int, alpha: float) -> np.ndarray:
    """Return the power of the two-sided test. `mean` is the true mean in units of the true standard error.

    t^2 has a noncentral F distribution, which covers both tails. scipy's noncentral t distribution returns nan far in
    the tail.
    """
    return scipy.stats.ncf.sf(float(scipy.stats.t.isf(alpha / 2, freedom)) ** 2, 1, freedom, mean**2)


def _mean_with_power(power: Callable[[float], float]) -> float:
    return _with_power(power, 1.0)


def _with_power(power: Callable[[float], float], highest: float) -> float:
    """Return the value at which `power` is POWER. `highest` is a first guess of a value above it."""
    while power(highest) < POWER:
        highest *= 2
    return float(scipy.optimize.brentq(lambda value: power(value) - POWER, 1e-6 * highest, highest))  # pyright: ignore[reportArgumentType]
