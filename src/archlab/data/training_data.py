"""What a run reads: windows to train on and windows by which it is judged, of text or of a task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np


class Windows(NamedTuple):
    """Windows of tokens in which each is predicted from those before it."""

    tokens: np.ndarray
    """int64 [n, T + 1]."""
    scored: np.ndarray | None = None
    """bool [n, T]: which predicted tokens are trained on; None: all."""


@dataclass(frozen=True)
class HeldOut:
    """The windows that every evaluation uses; n windows, T predicted tokens each."""

    tokens: np.ndarray
    """int64 [n, T + 1]; the first token of each is only context."""
    scored: np.ndarray
    """bool [n, T]: which predicted tokens count. Of text all tokens of documents, of a task its answers."""
    bytes: np.ndarray | None
    """int [n, T]: bytes of text that each predicted token stands for; None for a task, whose tokens stand for none. A
    document's first token may be scored but stand for none, if it is only the space that the tokenizer has added."""
    documents: np.ndarray | None
    """int [n, T]: number of the document that each predicted token belongs to, from 0 on; None for a task."""
    separator: int | None = None
    """The token that begins a document, where documents do not see each other; None where they do."""

    @classmethod
    def of_text(
        cls,
        tokens: np.ndarray,
        token_bytes: np.ndarray,
        before: Sequence[int],
        prefix_bytes: int = 0,
        *,
        goes_on: np.ndarray,
        masked: bool,
    ) -> "HeldOut":
        """Windows of a text.

        `token_bytes`, int [vocab]: bytes that each token stands for; 0 for special tokens. `before`: the tokens that
        precede every document and nothing else, and stand for no bytes. `prefix_bytes`: bytes of the first token after
        them that the tokenizer has added. `goes_on`, bool [n]: whether each window begins in the document with which
        the one before ends. `masked`: documents do not see each other.
        """
        counted = np.where(np.isin(tokens[:, 1:], before), 0, token_bytes[tokens[:, 1:]])
        scored = counted > 0
        counted -= prefix_bytes * ((tokens[:, :-1] == before[-1]) & scored)
        separator = before[0] if masked else None
        return cls(tokens, scored, counted, _documents(tokens, before[0], goes_on), separator)

    def first_tokens(self, count: int) -> list[list[int]]:
        """Of each document, as far as it is in the windows; empty for a task."""
        if self.documents is None:
            return []
        numbers, targets = self.documents.ravel(), self.tokens[:, 1:].ravel()
        ends = np.flatnonzero(np.diff(numbers, append=numbers[-1] + 1)) + 1
        return [targets[begin : min(begin + count, end)].tolist() for begin, end in pairwise([0, *ends])]

    @property
    def seq_len(self) -> int:
        """Tokens per window that are predicted."""
        return self.tokens.shape[1] - 1


def _documents(tokens: np.ndarray, end_of_text: int, goes_on: np.ndarray) -> np.ndarray:
    begins = tokens[:, 1:] == end_of_text
    begins[:, 0] |= ~goes_on
    return begins.cumsum().reshape(begins.shape) - int(begins[0, 0])


class TrainingData(Protocol):
    """Every window is a pure function of its arguments, so resuming is one integer."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change with the tokens. Which fold is held out is not in them."""
        ...

    @property
    def known_tokens(self) -> int:
        """Token ids below this occur."""
        ...

    @property
    def n_folds(self) -> int:
        """How many parts can be held out, each by itself."""
        ...

    @property
    def tokenizer(self) -> Path | None:
        """The file that turns text into these tokens; None where they are no text."""
        ...

    @property
    def document_token(self) -> int | None:
        """The first token that precedes each document; None for a task, which has none."""
        ...

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """What a step trains on; so many windows of seq_len predicted tokens."""
        ...

    def passes(self, n_windows: int, seq_len: int) -> Mapping[str, float]:
        """Source of text -> how often a run of so many windows reads it through; empty for a task."""
        ...

    def held_out(self, seq_len: int, n_tokens: int | None, *, masked: bool) -> HeldOut:
        """About so many tokens that are never trained on, always the same; None: all there are. `masked`: documents do
        not see each other."""
        ...

    def beginnings(self, held_out: HeldOut) -> list[str]:
        """How each document begins, as far as it is in the windows; empty for a task."""
        ...
