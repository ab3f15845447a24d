"""Differences between the scores of models on the same windows, with confidence intervals."""

import numpy as np
import scipy  # loads its parts on first use

from archlab.training.evaluate import WindowSums

CONFIDENCE = 0.95


def interval(first: WindowSums, other: WindowSums) -> tuple[float, float] | None:
    """Return the confidence interval of the score of `other` minus that of `first`, paired by window.

    A score is a ratio of two sums over windows, as bits by bytes. Its error is linearized (delta method, Cochran 1977,
    chapter 6), so that a window counts by its bytes, and the interval is that of Student's t. A bootstrap over windows
    gives almost the same interval, because the bytes of windows vary little, but it is random and takes longer.

    The interval covers the choice of the windows, which it takes to be independent. None: there are fewer than two
    windows, or the models read different numbers of windows, so that these have no pairs.
    """
    n = len(first.weights)
    if n < 2 or len(other.weights) != n:
        return None
    errors = _linearized(other) - _linearized(first)
    half_width = float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, n - 1) * scipy.stats.sem(errors))
    difference = other.score - first.score
    return difference - half_width, difference + half_width


def _linearized(sums: WindowSums) -> np.ndarray:
    """Return by how much each window moves the score, times the number of windows. The mean is 0."""
    return (sums.amounts - sums.score * sums.weights) / sums.weights.mean()
