"""Power of the t-test: the differences that a study can detect, and the number of pairs needed to detect a given
difference."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
import scipy  # loads its parts on first use

POWER = 0.8
"""Probability that a test detects a true difference of the planned size."""

_COVERED = 0.95


def smallest_effect(deviation: float, pairs: int, freedom: int, alpha: float) -> float:
    """Return the smallest true difference that a new study of this design detects with 80% probability in a two-sided
    t-test at `alpha`.

    `deviation` is the standard deviation of the differences in one study, and `freedom` its degrees of freedom. With
    few pairs, the observed deviation can be far from the true one. If the observed deviation were treated as the true
    one, a new study of 3 pairs would detect the returned difference with a probability of only 63%. So the 80% include
    two sources of chance: the observed deviation and the new study's test. If many studies each state such a
    difference, and the true difference equals it, four of five new studies detect it.
    """
    return _mean_for_observed_deviation(freedom, alpha) * deviation / sqrt(pairs)


def pairs_for(effect: float, deviation: float, freedom: int, alpha: float) -> int:
    """Return the number of pairs for which `effect` is the smallest detectable effect."""
    return ceil((_mean_for_observed_deviation(freedom, alpha) * deviation / effect) ** 2)


def smallest_effect_interval(deviation: float, pairs: int, freedom: int, alpha: float) -> tuple[float, float]:
    """Return a 95% interval for the difference that the same test would detect with 80% probability if the true
    deviation were known.

    The interval follows from the interval of the true deviation, which comes from the chi-square distribution of the
    observed variance. It has the unit of `deviation`. Few pairs estimate the deviation badly: with 3 pairs, the upper
    end is 12 times the lower.
    """
    tail = (1 - _COVERED) / 2
    scale = _mean_for_true_deviation(freedom, alpha) * deviation / sqrt(pairs)
    low, high = (sqrt(freedom / float(scipy.stats.chi2.isf(share, freedom))) for share in (tail, 1 - tail))
    return scale * low, scale * high


@lru_cache
def _mean_for_observed_deviation(freedom: int, alpha: float) -> float:
    """Return the mean of the t statistic, in observed standard errors, at which the test has the average power POWER.

    The average is over the observed deviation. The squared observed deviation, divided by the true variance, is a
    chi-square variable divided by its degrees of freedom.
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
    """Return the power of the test.

    t^2 has a noncentral F distribution, which covers both tails. scipy's noncentral t returns nan in the far tail.
    """
    return scipy.stats.ncf.sf(float(scipy.stats.t.isf(alpha / 2, freedom)) ** 2, 1, freedom, mean**2)


def _mean_with_power(power: Callable[[float], float]) -> float:
    highest = 1.0
    while power(highest) < POWER:
        highest *= 2
    return float(scipy.optimize.brentq(lambda mean: power(mean) - POWER, 1e-6, highest))  # pyright: ignore[reportArgumentType]
