"""Numbers written in several tokens."""

import numpy as np

MOST_NUMBERS = 2**62
"""More different ones are never drawn from; they would not fit an int64."""


def digits(numbers: np.ndarray, base: int, n: int) -> np.ndarray:
    """int64 [..., n]: the digits of each number, the last one first, so that the first n to differ stand in front."""
    return np.stack([numbers // base**i % base if base**i < MOST_NUMBERS else 0 * numbers for i in range(n)], axis=-1)
