"""Random numbers of windows: what window i draws is a function of seed, split, i and the name of what is drawn."""

import hashlib
from dataclasses import dataclass

import numpy as np

_BLOCK = 4
"""Numbers that Philox makes per count of its counter."""


@dataclass(frozen=True)
class Dice:
    """Throws for the windows first to first + count, one row per window.

    Each name has a stream of its own, so that a change of one thing that is drawn moves no other.
    """

    seed: int
    split: str
    """train, or held_out."""
    first: int
    count: int

    def bits(self, name: str, n: int) -> np.ndarray:
        """uint64 [count, n], uniform. Philox is counted, so a window's numbers are found without those before it."""
        key = hashlib.sha256(f"{self.split} {self.seed} {name}".encode()).digest()[:16]
        blocks = -(-n // _BLOCK)
        # numpy promises the same raw bits in every version, but not the same integers() or permutation().
        stream = np.random.Philox(key=int.from_bytes(key)).advance(self.first * blocks)
        return stream.random_raw(self.count * blocks * _BLOCK).reshape(self.count, -1)[:, :n]

    def below(self, name: str, n: int, limit: int) -> np.ndarray:
        """int64 [count, n]: uniform from 0 to limit - 1."""
        return (self.bits(name, n) % np.uint64(limit)).astype(np.int64)

    def order(self, name: str, n: int) -> np.ndarray:
        """int64 [count, n]: 0 to n - 1 in random order."""
        return np.argsort(self.bits(name, n), axis=1, kind="stable")

    def subset(self, name: str, n: int, limit: int) -> np.ndarray:
        """int64 [count, n]: n different numbers from 0 to limit - 1; any set is as likely (Floyd's algorithm)."""
        drawn, chosen = self.bits(name, n), np.empty((self.count, n), dtype=np.int64)
        for i in range(n):
            last = limit - n + i
            number = (drawn[:, i] % np.uint64(last + 1)).astype(np.int64)
            taken = (chosen[:, :i] == number[:, None]).any(axis=1)
            chosen[:, i] = np.where(taken, last, number)
        return chosen

    def distinct(self, name: str, n: int, limit: int) -> np.ndarray:
        """int64 [count, n]: n different numbers from 0 to limit - 1, in random order."""
        chosen = self.subset(name, n, limit)
        return np.take_along_axis(chosen, self.order(f"order of {name}", n), axis=1)
