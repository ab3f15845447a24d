"""Random numbers for windows.

The numbers of window i depend only on the seed, the split, i and the name of a random stream.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

_BLOCK = 4
"""Number of random numbers that Philox generates per step of its counter."""


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
