"""What a model is judged by: windows of tokens, which of them count, and for how much text they stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


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
