"""Which true differences a study finds, and how many pairs it takes to find one of a given size."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
import scipy  # loads its parts on first use

POWER = 0.8
"""The probability with which a difference is to be found."""

_COVERED = 0.95
"""The confidence of the interval of the smallest effect."""


def smallest_effect(deviation: float, pairs: int, freedom: int, alpha: float) -> float:
    """The true difference that a new study of this design finds with 80% probability, by a two-sided t-test at `alpha`.

    `deviation` is the standard deviation of the differences that one study observed, with so many degrees of freedom.
    It misses the true one, and with few pairs by much: taken for it, the result would be found in 63% of studies of 3
    pairs. So the 80% are those of both together, of observing a deviation and of a new study's test: over many studies,
    a true difference as large as each has stated is found by four new ones in five.
    """
    return _of_an_observed_deviation(freedom, alpha) * deviation / sqrt(pairs)


def pairs_for(effect: float, deviation: float, freedom: int, alpha: float) -> int:
    """How many pairs make `effect` the smallest one."""
    return ceil((_of_an_observed_deviation(freedom, alpha) * deviation / effect) ** 2)


def smallest_effect_interval(deviation: float, pairs: int, freedom: int, alpha: float) -> tuple[float, float]:
    """The 95% interval of the difference that such a test would find with 80% probability, were the deviation known.

    It is the interval of the true deviation, by the chi-square distribution of the observed variance, in the unit of
    `deviation`. Few pairs know their scatter badly: of 3, the upper end is 12 times the lower.
    """
    tail = (1 - _COVERED) / 2
    times = _of_the_true_deviation(freedom, alpha) * deviation / sqrt(pairs)
    low, high = (sqrt(freedom / float(scipy.stats.chi2.isf(share, freedom))) for share in (tail, 1 - tail))
    return times * low, times * high


@lru_cache
def _of_an_observed_deviation(freedom: int, alpha: float) -> float:
    """Mean of the t statistic, in observed standard errors, at which its test has power POWER on average.

    The average is over the observed deviation's distance from the true one: its square, over the true one's, is a
    chi-square divided by its degrees of freedom.
    """

    def power(mean: float) -> float:
        def at(share: np.ndarray) -> np.ndarray:
            return _power(mean * np.sqrt(scipy.stats.chi2.ppf(share, freedom) / freedom), freedom, alpha)

        return float(scipy.integrate.fixed_quad(at, 0, 1, n=64)[0])

    return _where_enough(power)


@lru_cache
def _of_the_true_deviation(freedom: int, alpha: float) -> float:
    """The same in true standard errors."""
    return _where_enough(lambda mean: float(_power(np.array(mean), freedom, alpha)))


def _power(mean: np.ndarray, freedom: int, alpha: float) -> np.ndarray:
    """t^2 follows the noncentral F distribution, both tails in one; scipy's noncentral t is nan in the far tail."""
    return scipy.stats.ncf.sf(float(scipy.stats.t.isf(alpha / 2, freedom)) ** 2, 1, freedom, mean**2)


def _where_enough(power: Callable[[float], float]) -> float:
    """The mean at which it is POWER."""
    highest = 1.0
    while power(highest) < POWER:
        highest *= 2
    return float(scipy.optimize.brentq(lambda mean: power(mean) - POWER, 1e-6, highest))  # pyright: ignore[reportArgumentType]
