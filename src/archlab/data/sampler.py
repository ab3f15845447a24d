"""Which windows a step sees: a pure function of seed and step, so resuming is one integer."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np

_SOURCES = 64
"""Of which the order of windows is kept in memory; more are put in order again for each batch."""


def samples(step: int, batch_size: int) -> range:
    """Which samples are read at a step, counted over the whole run from 0 on."""
    return range(step * batch_size, (step + 1) * batch_size)


def divided(weights: Sequence[float], wanted: range) -> tuple[np.ndarray, np.ndarray]:
    """Of each sample of a mixture, int64: the number of its source, and its own number among that source's samples.

    The first n samples are shared out as Webster (Sainte-Lague) shares out n seats: sample j of a source is due at
    (j + 1/2) / weight, and they come in the order in which they are due. So after any number of samples a source has
    had its share of them, give or take 1/2 + half its share of the number of sources.
    """
    each, n = np.array(weights, dtype=np.float64), len(weights)
    total = each.sum()
    low = np.maximum(np.floor(each * (wanted.start - n) / total) - 1, 0).astype(np.int64)
    high = (np.ceil(each * (wanted.stop + n) / total) + 1).astype(np.int64)
    source = np.repeat(np.arange(n), high - low)
    number = np.concatenate([np.arange(*ends) for ends in zip(low, high, strict=True)])
    first = wanted.start - int(low.sum())  # all before `low` are due earlier than these
    order = np.lexsort((source, (number + 0.5) / each[source]))[first : first + len(wanted)]
    return source[order], number[order]


def windows_per_epoch(n_tokens: int, seq_len: int) -> int:
    """Training windows in one pass over the text; a remainder is left, so that each epoch begins at another token."""
    return max((n_tokens - seq_len) // seq_len, 1)


def window_starts(n_tokens: int, seq_len: int, seed: int, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64 [len(numbers)]: where those windows begin, counted over the whole run from 0 on."""
    order = _order(n_tokens, seq_len, seed)
    epochs, indices = np.divmod(np.asarray(numbers, dtype=np.int64), windows_per_epoch(n_tokens, seq_len))
    starts = np.empty(len(epochs), dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        starts[chosen] = order(int(epoch))[indices[chosen]]
    return starts


@lru_cache(_SOURCES)
def _order(n_tokens: int, seq_len: int, seed: int) -> Callable[[int], np.ndarray]:
    """Of an epoch's number; two of them are kept, for a batch may span them."""
    return lru_cache(2)(partial(_epoch, n_tokens, seq_len, seed))


def _epoch(n_tokens: int, seq_len: int, seed: int, epoch: int) -> np.ndarray:
    """Starts of an epoch's windows: multiples of seq_len after a random offset, in random order."""
    count = windows_per_epoch(n_tokens, seq_len)
    # numpy promises the same raw bits in every version, but not the same permutation().
    bits = np.random.PCG64([seed, epoch]).random_raw(count + 1)
    offset = int(bits[-1] % np.uint64(n_tokens - count * seq_len))
    return np.argsort(bits[:-1], kind="stable") * seq_len + offset


def held_out_starts(n_tokens: int, seq_len: int, count: int) -> np.ndarray:
    """int64 [count]: where always the same windows of a held-out text begin, spread evenly; they do not overlap."""
    return np.arange(count) * held_out_windows(n_tokens, seq_len) // count * seq_len


def held_out_windows(n_tokens: int, seq_len: int) -> int:
    """How many there are that do not overlap."""
    return (n_tokens - 1) // seq_len
