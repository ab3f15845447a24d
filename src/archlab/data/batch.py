"""Batches: what a model reads in one pass, and what it has to predict.

Shapes: N windows, T tokens of the stack, S tokens of an encoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from archlab.data.training_data import Windows, rows_of

ScoreName = Literal["bits_per_byte", "accuracy", "denoising_loss"]
"""Name of the score of a run: bits per byte of text, the fraction of a task's answers that are right, or the loss per
hidden token."""


@dataclass(frozen=True)
class Batch:
    """Inputs of a model, and its targets. Every objective makes its batches from the same windows of tokens."""

    tokens: np.ndarray
    """Input of the stack, int64 [N, T]. If the model has an encoder, this is the input of the decoder."""
    targets: np.ndarray
    """Token to predict at each position, int64 [N, T]."""
    counted: np.ndarray | None = None
    """Whether each target counts in the loss, bool [N, T]. None: all targets count."""
    documents: np.ndarray | None = None
    """Index of each token's document, counted from 0 in each window, int64 [N, T].

    None: attention is not masked between documents.
    """
    prefix: np.ndarray | None = None
    """Number of tokens at the beginning of each window that see each other in both directions, int64 [N]."""
    lengths: np.ndarray | None = None
    """Number of tokens in each window without padding, int64 [N]. None: no padding."""
    source: np.ndarray | None = None
    """Input of the encoder, int64 [N, S]. None: the model has no encoder."""
    source_lengths: np.ndarray | None = None
    """Number of tokens of each source without padding, int64 [N]. None: no padding."""
    source_documents: np.ndarray | None = None
    """Number of each source token's document, int64 [N, S]. None: each row is one source, and `documents` is None."""
    index: np.ndarray | None = None
    """Index of each target among the predicted tokens of its window, int64 [N, T]. None: 0 ... T - 1."""

    def rows(self, part: slice) -> "Batch":
        """Return some of the windows."""
        return rows_of(self, part)


def next_token(windows: Windows, separator: int | None = None) -> Batch:
    """Return the batch in which each token is predicted from the tokens before it.

    `separator` is the token that begins a document, or None if attention is not masked between documents. Attention is
    always masked between conversations.
    """
    inputs = windows.tokens[:, :-1]
    lengths = None if windows.lengths is None else np.minimum(windows.lengths, inputs.shape[1])
    packed = windows.conversations
    documents = document_ids(inputs, separator) if packed is None else packed[:, :-1]
    return Batch(inputs, windows.tokens[:, 1:], windows.scored, documents, lengths=lengths)


def document_ids(tokens: np.ndarray, separator: int | None) -> np.ndarray | None:
    """Return the index of each token's document, counted from 0 in each window, int64 [N, T].

    Return None if attention is not masked between documents. Document 0 is the rest of a document that began before the
    window. A separator belongs to the document that it begins, but it is predicted from the previous document.
    """
    return None if separator is None else (tokens == separator).cumsum(-1)


@dataclass(frozen=True)
class HeldOut:
    """Held-out batch that every evaluation uses."""

    batch: Batch
    windows: Windows
    """Windows from which the batch was made."""
    hides_tokens: bool = False
    """Whether the targets that count are hidden tokens."""
    parts: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Indices of the windows of each part of a mixture, int64, by the name of the part. Empty without a mixture."""

    @property
    def measure(self) -> ScoreName:
        """Name of the score."""
        if self.hides_tokens:
            return "denoising_loss"
        return "accuracy" if self.windows.bytes is None else "bits_per_byte"

    @property
    def counted(self) -> np.ndarray:
        """Whether each target counts, bool [N, T]."""
        counted = self.batch.counted
        return np.ones(self.batch.targets.shape, bool) if counted is None else counted

    @property
    def bytes(self) -> np.ndarray | None:
        """Number of bytes of text for each target, int [N, T]; 0 for targets that do not count.

        None if the score is not in bits per byte.
        """
        text_bytes = self.windows.bytes if self.measure == "bits_per_byte" else None
        return None if text_bytes is None else np.where(self.counted, self.of_targets(text_bytes), 0)

    def of_targets(self, values: np.ndarray) -> np.ndarray:
        """Return the value of each target, [N, T], from the values of the predicted tokens of the windows."""
        return values if self.batch.index is None else np.take_along_axis(values, self.batch.index, axis=1)

    @property
    def seq_len(self) -> int:
        """Number of tokens that the model reads per window, in all stacks."""
        source = self.batch.source
        return self.batch.tokens.shape[1] + (0 if source is None else source.shape[1])
