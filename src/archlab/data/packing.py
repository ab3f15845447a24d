"""Packing of conversations into windows: which ones share a window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np


@dataclass(frozen=True)
class Packing:
    """Division of texts among windows, by best fit in the order of decreasing length.

    Which lengths share a window is fixed. Which texts of these lengths do, and the order of the windows, are random in
    each epoch. So all epochs have equally many windows, and a window depends only on the seed and its number.
    """

    lengths: np.ndarray
    """Number of tokens of each text, int64."""
    window_of_place: np.ndarray
    """Window of each place, int64. Places have decreasing lengths: the longest text has the first place."""
    n_windows: int
    """Number of windows of an epoch."""

    @classmethod
    def of(cls, lengths: np.ndarray, capacity: int) -> "Packing":
        """Pack texts into as few windows of `capacity` tokens as best fit needs. No text may be longer."""
        window_of_place, n_windows = _best_fit(-np.sort(-lengths), capacity)
        return cls(lengths, window_of_place, n_windows)

    def in_order(self, windows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Return the texts of the given windows, int64, without any randomness."""
        return self._texts(np.argsort(-self.lengths, kind="stable"), windows)

    def of_epoch(self, numbers: Sequence[int] | np.ndarray, seed: int, epoch: int) -> list[np.ndarray]:
        """Return the texts, int64, of the windows with the given numbers in an epoch."""
        texts, windows = self._orders(seed, epoch)
        return self._texts(texts, windows[np.asarray(numbers)])

    @cached_property
    def _orders(self) -> Callable[[int, int], tuple[np.ndarray, np.ndarray]]:
        return lru_cache(2)(self._order)  # a batch may span two epochs

    def _order(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the text at each place, and the windows in the order of the epoch."""
        # numpy promises the same raw bits in every version, but not the same permutation().
        bits = np.random.PCG64([seed, epoch]).random_raw(len(self.lengths) + self.n_windows)
        texts = np.lexsort((bits[: len(self.lengths)], -self.lengths))
        return texts, np.argsort(bits[len(self.lengths) :], kind="stable")

    def _texts(self, text_at_place: np.ndarray, windows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        places, borders = self._places
        return [text_at_place[places[borders[window] : borders[window + 1]]] for window in windows]

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Places ordered by their windows, and where each window begins among them."""
        counts = np.bincount(self.window_of_place, minlength=self.n_windows)
        return np.argsort(self.window_of_place, kind="stable"), np.concatenate([[0], counts.cumsum()])


def _best_fit(decreasing: np.ndarray, capacity: int) -> tuple[np.ndarray, int]:
    """Put each length into the window with the least room that holds it. Return the windows, and their number."""
    window_of_place, n_windows = np.empty(len(decreasing), dtype=np.int64), 0
    windows_by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit n: some window has room for exactly n tokens
    for place, length in enumerate(decreasing.tolist()):
        if enough := rooms >> length:
            room = length + (enough & -enough).bit_length() - 1
            window = windows_by_room[room].pop()
            if not windows_by_room[room]:
                rooms ^= 1 << room
        else:
            room, window, n_windows = capacity, n_windows, n_windows + 1
        window_of_place[place] = window
        windows_by_room[room - length].append(window)
        rooms |= 1 << (room - length)
    return window_of_place, n_windows
