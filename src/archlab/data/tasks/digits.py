"""Numbers written as several tokens."""

import numpy as np

MOST_NUMBERS = 2**62
"""Size of the largest range from which numbers are drawn. A larger range would not fit into an int64."""


def digits(numbers: np.ndarray, base: int, n: int) -> np.ndarray:
    """Return the last n digits of each number as int64 [..., n].

    The least significant digit comes first. If all numbers are small, the digits that are always 0 are thus at the end.
    """
    return np.stack([numbers // base**i % base if base**i < MOST_NUMBERS else 0 * numbers for i in range(n)], axis=-1)
