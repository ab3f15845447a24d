"""Batches that score the continuation of each window, whatever the objective with which the model was trained.

Shapes: N windows, T tokens.
"""

from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from archlab.config.objective import Masked, Mixture, Objective, Prefix, SpanCorruption, TokensRead
from archlab.data.batch import Batch, HeldOut, document_ids
from archlab.data.objective_mixture import fitted
from archlab.data.objectives import Batches
from archlab.data.reserved import SpecialIds
from archlab.data.training_data import Windows
from archlab.errors import UserError


@dataclass(frozen=True)
class Continued:
    """Windows of a text, and the number of tokens at their beginnings that a model reads before it continues them."""

    windows: Windows
    n_read: int
    special: SpecialIds
    separator: int | None
    """Token that begins a document; None if attention is not masked between documents."""
    has_encoder: bool
    """Whether the model has an encoder, which reads the beginnings."""

    @property
    def beginnings(self) -> np.ndarray:
        return self.windows.tokens[:, : self.n_read]

    def batch(self, source: np.ndarray, lead: np.ndarray, *, has_prefix: bool) -> Batch:
        """Return the batch in which a model reads `source` and `lead`, and predicts the rest of each window.

        An encoder reads `source`, and the decoder reads `lead` after the token that begins a document. One stack reads
        `source`, as a visible prefix if `has_prefix`, and then `lead`.
        """
        windows, rows = self.windows, len(self.windows.tokens)
        start = np.full((rows, 1), self.special.documents[0]) if self.has_encoder else source
        whole = np.concatenate([start, lead, windows.tokens[:, self.n_read :]], axis=1)
        inputs, targets = whole[:, :-1], whole[:, 1:]
        n_targets, n_tokens = targets.shape[1], windows.tokens.shape[1] - 1
        index = np.arange(n_targets) - (n_targets - n_tokens)
        index_NT = np.tile(np.maximum(index, 0), (rows, 1))
        counted_NT = np.tile(index >= self.n_read - 1, (rows, 1))
        if windows.scored is not None:
            counted_NT &= np.take_along_axis(windows.scored, index_NT, axis=1)
        return Batch(
            inputs,
            targets,
            counted_NT,
            documents=document_ids(inputs, self.separator),
            prefix=np.full(rows, source.shape[1]) if has_prefix and not self.has_encoder else None,
            source=source if self.has_encoder else None,
            index=index_NT,
        )


def continuations(batches: Batches, seq_len: int, n_tokens: int | None, share_read: float) -> HeldOut:
    """Return held-out windows of text. The model reads the fraction `share_read` of each, and predicts the rest.

    The same tokens count for every objective. Raise UserError if the data consists of pairs or conversations.
    """
    batches.check(seq_len)
    if (form := batches.data.form) in ("pairs", "conversations"):
        raise UserError(
            f"measure: continuation needs plain text, but the data consists of {form}; allowed: bits_per_byte"
        )
    windows = batches.data.held_out(seq_len, n_tokens)
    n_read = min(round(share_read * seq_len), seq_len - 1) + 1  # with the token before the window
    special = batches.data.special
    separator = special.documents[0] if batches.document_mask else None
    continued = Continued(windows, n_read, special, separator, batches.has_encoder)
    return HeldOut(continuation(batches.objective, continued), windows)


@singledispatch
def continuation(objective: Objective, continued: Continued) -> Batch:
    """Return the batch in which a model that was trained with `objective` continues the windows.

    Each objective lets the model read the beginnings in the form that it was trained on.
    """
    return continued.batch(continued.beginnings, continued.beginnings[:, :0], has_prefix=False)


@continuation.register
def _after_a_prefix(objective: Prefix, continued: Continued) -> Batch:
    return continued.batch(continued.beginnings, continued.beginnings[:, :0], has_prefix=True)


@continuation.register
def _as_a_hidden_span(objective: SpanCorruption, continued: Continued) -> Batch:
    """Let the model restore the continuation as a hidden span at the end of the text."""
    ends = (continued.special.sentinels[0], continued.special.documents[0])
    end, sentinel = (np.tile(tokens, (len(continued.beginnings), 1)) for tokens in (ends, ends[:1]))
    return continued.batch(np.concatenate([continued.beginnings, end], axis=1), sentinel, has_prefix=True)


@continuation.register
def _as_one_part(objective: Mixture, continued: Continued) -> Batch:
    """Let the model continue the windows in the format of `Mixture.continuing`, after its mode token."""
    part, n_modes = objective.continuing, int(objective.continuing.mode is not None)
    made = continuation(part.objective, continued)
    n_read, n_source = made.tokens.shape[1], 0 if made.source is None else made.source.shape[1]
    read = TokensRead(n_read, n_source + n_modes) if n_source else TokensRead(n_read + n_modes)
    return fitted(made, read, continued.special.modes[part.mode] if part.mode else None)


@continuation.register
def _of_no_text(objective: Masked, continued: Continued) -> Batch:
    raise TypeError(f"{objective.kind}: sees the tokens that it would have to predict")  # studies have refused it
