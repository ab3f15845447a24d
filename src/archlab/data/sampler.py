"""Which tokens a step sees: a pure function of seed, step and rank, so resuming is one integer."""

from functools import lru_cache

import numpy as np

from archlab.data.shards import DataFolder, Tokens
from archlab.errors import UserError


def windows_per_epoch(n_tokens: int, seq_len: int) -> int:
    """Training windows in one pass over the text; a remainder is left, so that each epoch begins at another token."""
    return max((n_tokens - seq_len) // seq_len, 1)


def window_starts(
    n_tokens: int, seq_len: int, seed: int, step: int, batch_size: int, rank: int = 0, world_size: int = 1
) -> np.ndarray:
    """int64 [batch_size / world_size]: where the windows of a rank at a step begin.

    Samples are counted over the whole run, step * batch_size + i. Each rank takes a contiguous part of the batch, so
    the batch is the same for any number of ranks.
    """
    if batch_size % world_size:
        raise UserError(f"train.batch_tokens: {batch_size} sequences cannot be divided among {world_size} processes")
    share = batch_size // world_size
    samples = step * batch_size + rank * share + np.arange(share)
    epochs, indices = np.divmod(samples, windows_per_epoch(n_tokens, seq_len))
    starts = np.empty(share, dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        starts[chosen] = _epoch(n_tokens, seq_len, seed, int(epoch))[indices[chosen]]
    return starts


@lru_cache(maxsize=4)
def _epoch(n_tokens: int, seq_len: int, seed: int, epoch: int) -> np.ndarray:
    """Starts of an epoch's windows: multiples of seq_len after a random offset, in random order."""
    count = windows_per_epoch(n_tokens, seq_len)
    # numpy promises the same raw bits in every version, but not the same permutation().
    bits = np.random.PCG64([seed, epoch]).random_raw(count + 1)
    offset = int(bits[-1] % np.uint64(n_tokens - count * seq_len))
    return np.argsort(bits[:-1], kind="stable") * seq_len + offset


def batch(
    data: DataFolder, seed: int, step: int, batch_size: int, seq_len: int, rank: int = 0, world_size: int = 1
) -> np.ndarray:
    """int64 [batch_size / world_size, seq_len + 1]; inputs are `[:, :-1]`, targets `[:, 1:]`."""
    _check_length(data, data.train, "training", seq_len)
    starts = window_starts(len(data.train), seq_len, seed, step, batch_size, rank, world_size)
    return data.train.windows(starts, seq_len + 1)


def held_out_starts(data: DataFolder, seq_len: int, n_tokens: int) -> np.ndarray:
    """int64 [n]: where the windows of always the same n_tokens of held-out text (or all there are) begin, spread
    evenly; they do not overlap."""
    _check_length(data, data.held_out, "held-out", seq_len)
    available = (len(data.held_out) - 1) // seq_len
    count = min(max(n_tokens // seq_len, 1), available)
    return np.arange(count) * available // count * seq_len


def _check_length(data: DataFolder, tokens: Tokens, split: str, seq_len: int) -> None:
    if len(tokens) <= seq_len:
        found = f"the {split} text of {data.manifest.source} has {len(tokens)} tokens"
        raise UserError(f"train.seq_len: {seq_len}; {found}; allowed: up to {len(tokens) - 1}, or more text")
