"""Batches that each objective makes from windows of tokens.

They are pure functions of the windows and of random numbers that depend only on the seed and the window, so a run
resumes exactly.

Shapes: N windows, T tokens.
"""

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from archlab.config.objective import Masked, Objective, Prefix
from archlab.data.batch import Batch, HeldOut, document_ids, next_token
from archlab.data.reserved import SpecialIds
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import TrainingData, Windows
from archlab.errors import UserError


@dataclass(frozen=True)
class Batches:
    """Training batches and the held-out batch of a run. Raise UserError if the data lacks a token that the objective
    needs."""

    data: TrainingData
    objective: Objective
    document_mask: bool
    """Whether attention is masked between documents. It has no effect on a task, which has no documents."""

    def __post_init__(self) -> None:
        special = self.data.special
        for reserved in self.objective.reserved:
            what, _, count = reserved.partition(":")
            present = len(special.sentinels) if count else int(special.mask is not None)
            if present < int(count or 1):
                needed = f"{count} sentinels" if count else f"a {what} token"
                raise UserError(
                    f"train.objective.kind: {self.objective.kind} needs {needed}; the data's tokenizer has "
                    f"{present or 'none'}; allowed: data.reserve=[{reserved}], or a folder made by "
                    f"`archlab data --reserve {reserved}`"
                )

    def training(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Return the batch of a training step, made from `batch_size` windows of `seq_len` tokens."""
        windows = self.data.windows(seed, step, batch_size, seq_len)
        return self._made(windows, Dice(seed, "train", step * batch_size, batch_size))

    def held_out(self, seq_len: int, n_tokens: int | None) -> HeldOut:
        """Return the batch of `TrainingData.held_out`, which is the same for all seeds."""
        windows = self.data.held_out(seq_len, n_tokens)
        batch = self._made(windows, Dice(0, "held_out", 0, len(windows.tokens)))
        return HeldOut(batch, windows, denoises=self.objective.denoises)

    def _made(self, windows: Windows, dice: Dice) -> Batch:
        special = self.data.special
        separator = special.documents[0] if self.document_mask and special.documents else None
        return make_batch(self.objective, windows, special, separator, dice)


@singledispatch
def make_batch(objective: Objective, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    """Return the batch that an objective makes from windows.

    `separator` is the token that begins a document, or None if attention is not masked between documents. `dice` gives
    the random numbers of these windows.
    """
    return next_token(windows, separator)


@make_batch.register
def _masked(objective: Masked, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    """Choose a fixed fraction of the tokens of documents, and hide most of them (Devlin 2018)."""
    text_NT = windows.tokens[:, 1:]
    n_tokens = text_NT.shape[1]
    may_hide_NT = ~np.isin(text_NT, special.documents)
    if windows.scored is not None:
        may_hide_NT &= windows.scored
    count_N = np.maximum(np.rint(objective.rate * may_hide_NT.sum(1)), 1)
    order_NT = np.lexsort((dice.bits("hidden tokens", n_tokens), ~may_hide_NT))
    hidden_NT = np.argsort(order_NT) < count_N[:, None]
    share_NT = dice.bits("replacements", n_tokens) / 2.0**64
    random_NT = dice.below("random tokens", n_tokens, special.n_tokens)
    replaced_NT = np.where(share_NT < objective.mask + objective.random, random_NT, text_NT)
    replaced_NT = np.where(share_NT < objective.mask, special.mask, replaced_NT)
    return Batch(np.where(hidden_NT, replaced_NT, text_NT), text_NT, hidden_NT, document_ids(text_NT, separator))


@make_batch.register
def _prefix(objective: Prefix, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    """Draw how many tokens at the end of each window are predicted."""
    made = next_token(windows)
    n_tokens = made.targets.shape[1]
    most = max(round(2 * objective.rate * n_tokens) - 1, 1)
    first_N = n_tokens - 1 - dice.below("predicted tokens", 1, most)[:, 0]
    counted_NT = np.arange(n_tokens) >= first_N[:, None]
    if made.counted is not None:
        counted_NT &= made.counted
    return replace(made, counted=counted_NT, prefix=first_N + 1)


def random_batch(objective: Objective, windows: Windows, vocab_size: int, separator: int | None = None) -> Batch:
    """Return the batch of random windows, whose special tokens are the last ones of the vocabulary."""
    special = SpecialIds.at_the_end(vocab_size, objective.reserved)
    return make_batch(objective, windows, special, separator, Dice(0, "random", 0, len(windows.tokens)))
