"""Random numbers for windows.

The numbers of window i depend only on the seed, the split, i and the name of a random stream.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

_BLOCK = 4
"""Number of random numbers that Philox generates per step of its counter."""

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""Fractional part of the golden ratio, times 2^64."""


@dataclass(frozen=True)
class Dice:
    """Random numbers for the windows `first` to `first + count` (exclusive), one row per window.

    The argument `name` of each method selects a random stream. A task uses a different stream for each random choice,
    so that a change to one choice does not affect the others.
    """

    seed: int
    split: str
    first: int
    count: int

    def bits(self, name: str, n: int) -> np.ndarray:
        """Return uniform random integers as uint64 [count, n].

        Philox is counter-based, so the numbers of a window do not require those of earlier windows.
        """
        key = hashlib.sha256(f"{self.split} {self.seed} {name}".encode()).digest()[:16]
        blocks = -(-n // _BLOCK)
        # NumPy guarantees the same raw bits in every version, but not the same integers() or permutation().
        stream = np.random.Philox(key=int.from_bytes(key)).advance(self.first * blocks)
        return stream.random_raw(self.count * blocks * _BLOCK).reshape(self.count, -1)[:, :n]

    def some(self, rows: np.ndarray) -> "Dice":
        """Return the random numbers of some of these windows. `rows` holds the indices of the windows, int64 [n]."""
        return _SomeDice(self.seed, self.split, self.first, len(rows), self, rows)

    def even(self, name: str) -> np.ndarray:
        """Return one number in [0, 1) for each window, as float64 [count].

        The numbers of consecutive windows are evenly spread. They are a Weyl sequence with the golden ratio, from a
        random start.
        """
        start = Dice(self.seed, self.split, 0, 1).bits(name, 1)[0, 0]
        index = np.arange(self.first, self.first + self.count, dtype=np.uint64)
        return (start + index * _GOLDEN_RATIO) / 2.0**64

    def below(self, name: str, n: int, limit: int) -> np.ndarray:
        """Return uniform random integers from 0 to limit - 1 as int64 [count, n]."""
        return (self.bits(name, n) % np.uint64(limit)).astype(np.int64)

    def order(self, name: str, n: int) -> np.ndarray:
        """Return the integers 0 to n - 1 in random order as int64 [count, n]."""
        return np.argsort(self.bits(name, n), axis=1, kind="stable")

    def subset(self, name: str, n: int, limit: int) -> np.ndarray:
        """Return n different integers from 0 to limit - 1 as int64 [count, n].

        All subsets are equally likely (Floyd's algorithm).
        """
        drawn, chosen = self.bits(name, n), np.empty((self.count, n), dtype=np.int64)
        for i in range(n):
            last = limit - n + i
            number = (drawn[:, i] % np.uint64(last + 1)).astype(np.int64)
            taken = (chosen[:, :i] == number[:, None]).any(axis=1)
            chosen[:, i] = np.where(taken, last, number)
        return chosen

    def distinct(self, name: str, n: int, limit: int) -> np.ndarray:
        """Return n different integers from 0 to limit - 1 in random order, as int64 [count, n]."""
        chosen = self.subset(name, n, limit)
        return np.take_along_axis(chosen, self.order(f"order of {name}", n), axis=1)


@dataclass(frozen=True)
class _SomeDice(Dice):
    """Random numbers for some of the windows of other dice."""

    whole: Dice
    rows: np.ndarray

    def bits(self, name: str, n: int) -> np.ndarray:
        return self.whole.bits(name, n)[self.rows]

    def even(self, name: str) -> np.ndarray:
        return self.whole.even(name)[self.rows]
