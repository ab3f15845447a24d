"""Batches of windows with different objectives: the objective of each window, mode tokens, and padding to one length.

Shapes: N windows, T tokens of the stack, S tokens of an encoder.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from archlab.config.objective import Mixture, TokensRead
from archlab.config.tasks import BLANK
from archlab.data.batch import Batch
from archlab.data.tasks.dice import Dice


def windows_of_parts(objective: Mixture, dice: Dice) -> dict[str, np.ndarray]:
    """Return the indices of the windows of each part that has any, int64, by name of the part.

    Any run of consecutive windows is divided nearly in proportion to the shares. The choice has no period, because the
    windows from one source of `data.mixture` may have one, and could then all get the same part.
    """
    shares = np.array([part.share for _, part in objective.in_order])
    ends = np.cumsum(shares) / shares.sum()
    part_N = np.searchsorted(ends[:-1], dice.even("parts"), side="right")
    rows = ((name, np.flatnonzero(part_N == number)) for number, (name, _) in enumerate(objective.in_order))
    return {name: own for name, own in rows if len(own)}


def fitted(batch: Batch, read: TokensRead, mode: int | None) -> Batch:
    """Return a batch with a mode token before the input, and padding after it.

    Args:
        read: Numbers of tokens of each window after padding.
        mode: Mode token. It precedes the source, or the prefix in a model with one stack. None: no token.
    """
    n_windows, n_tokens = batch.targets.shape
    n_modes = int(mode is not None)
    before = n_modes if batch.source is None else 0

    def stack(array: np.ndarray, first: int = BLANK) -> np.ndarray:
        return _padded(array, before, read.stack, first)

    counted = np.ones_like(batch.targets, bool) if batch.counted is None else batch.counted
    index = np.tile(np.arange(n_tokens), (n_windows, 1)) if batch.index is None else batch.index
    made = Batch(
        stack(batch.tokens, mode or BLANK),
        stack(batch.targets),
        stack(counted),
        lengths=_or_full(batch.lengths, n_windows, n_tokens) + before,
        index=stack(index),
    )
    if batch.source is None:
        return replace(made, prefix=_or_full(batch.prefix, n_windows, 1) + n_modes)
    n_source = batch.source.shape[1]
    return replace(
        made,
        source=_padded(batch.source, n_modes, read.source, mode or BLANK),
        source_lengths=_or_full(batch.source_lengths, n_windows, n_source) + n_modes,
    )


def _or_full(numbers: np.ndarray | None, n_windows: int, number: int) -> np.ndarray:
    return np.full(n_windows, number) if numbers is None else numbers


def _padded(array: np.ndarray, before: int, n_columns: int, first: int) -> np.ndarray:
    after = n_columns - before - array.shape[1]
    return np.pad(array, ((0, 0), (before, after)), constant_values=((0, 0), (first, BLANK)))


def interleaved(batches: Sequence[Batch], rows: Sequence[np.ndarray]) -> Batch:
    """Return one batch of the windows of several batches, which all have the same shape. `rows` holds the index of each
    window in the result."""
    order = np.argsort(np.concatenate(rows))
    columns = {field.name: [getattr(batch, field.name) for batch in batches] for field in fields(Batch)}
    return Batch(**{name: np.concatenate(arrays)[order] for name, arrays in columns.items() if arrays[0] is not None})
