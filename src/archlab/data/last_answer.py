"""Batches in which only the last answer of each window of a task counts, for linear probes.

Shapes: N windows, T tokens.
"""

from dataclasses import replace
from functools import singledispatch

import numpy as np

from archlab.config.objective import Masked, Objective
from archlab.data.batch import Batch, HeldOut
from archlab.data.objectives import Batches
from archlab.data.reserved import SpecialIds


def last_answers(batches: Batches, seq_len: int, n_windows: int) -> Batch:
    """Return `n_windows` held-out windows of a task. The model never reads the answer that counts."""
    held_out = batches.held_out(seq_len, n_windows * seq_len)
    return last_answer(batches.objective, held_out, batches.data.special)


@singledispatch
def last_answer(objective: Objective, held_out: HeldOut, special: SpecialIds) -> Batch:
    """Return the windows as a model that was trained with `objective` reads them."""
    return replace(held_out.batch, counted=_last(held_out.counted))


@last_answer.register
def _masked(objective: Masked, held_out: HeldOut, special: SpecialIds) -> Batch:
    """Replace the last answer by the mask token. The model reads all other tokens as they are."""
    windows = held_out.windows
    assert windows.scored is not None
    assert special.mask is not None
    text_NT, hidden_NT = windows.tokens[:, 1:], _last(windows.scored)
    return Batch(np.where(hidden_NT, special.mask, text_NT), text_NT, hidden_NT)


def _last(counted_NT: np.ndarray) -> np.ndarray:
    """Return only the last true value of each row; all rows have one."""
    n_tokens = counted_NT.shape[1]
    last_N = n_tokens - 1 - counted_NT[:, ::-1].argmax(1)
    return np.arange(n_tokens) == last_N[:, None]
