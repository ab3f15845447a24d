"""Training and held-out windows of a run, from text or from a task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from archlab.config.objective import DataForm
from archlab.data.reserved import SpecialIds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Windows:
    """Windows of tokens, as they come from the data: n windows with T + 1 tokens each.

    A batch is made from them (`data/batch.py`).
    """

    tokens: np.ndarray
    """Token ids, int64 [n, T + 1]. The first token of each window is only context."""
    scored: np.ndarray | None = None
    """Whether each token after the first may count, bool [n, T]. None means that all tokens may.

    For held-out text, all tokens of documents count. For a task, only its answers count, and for conversations only the
    responses.
    """
    bytes: np.ndarray | None = None
    """Number of bytes of text for each token after the first, int [n, T]. None for a task, for training, and if the
    tokens do not represent every byte.

    The first token of a document may be scored and have no bytes, if it is only the space that the tokenizer adds.
    """
    documents: np.ndarray | None = None
    """Index of the document to which each token after the first belongs, int [n, T]. None for a task, and for
    training."""
    source_lengths: np.ndarray | None = None
    """Number of tokens of the source at the beginning of each window, with its separator, int64 [n]. The target follows
    it. None unless the data consists of pairs of a source and a target."""
    lengths: np.ndarray | None = None
    """Number of tokens of each window without the padding after them, int64 [n]. None unless the data consists of pairs
    or conversations."""
    conversations: np.ndarray | None = None
    """Index of the conversation of each token, counted from 0 in each window, int64 [n, T + 1]. Padding has the next
    index. None unless the data consists of conversations."""

    @classmethod
    def of_pairs(cls, tokens: np.ndarray, source_lengths: np.ndarray, lengths: np.ndarray) -> "Windows":
        """Return windows of pairs, in which all tokens of the targets count. The arguments are the fields of the
        windows."""
        index_T = np.arange(1, tokens.shape[1])
        scored = (index_T >= source_lengths[:, None]) & (index_T < lengths[:, None])
        return cls(tokens, scored, None, source_lengths=source_lengths, lengths=lengths)

    @classmethod
    def of_text(
        cls,
        tokens: np.ndarray,
        token_bytes: np.ndarray | None,
        before: Sequence[int],
        prefix_bytes: int = 0,
        *,
        continues: np.ndarray,
    ) -> "Windows":
        """Return held-out windows of a text.

        Args:
            token_bytes: Number of bytes of each token, int [vocab]; 0 for special tokens. None if the tokens do not
                represent every byte of the text. All tokens of documents are then scored, and `bytes` is None.
            before: Tokens that precede each document. They occur nowhere else and have no bytes.
            prefix_bytes: Number of bytes that the tokenizer adds to the first token after `before`.
            continues: Whether each window begins in the document in which the previous window ends, bool [n].
        """
        documents, is_before = _documents(tokens, before[0], continues), np.isin(tokens[:, 1:], before)
        if token_bytes is None:
            return cls(tokens, ~is_before, None, documents)
        counted = np.where(is_before, 0, token_bytes[tokens[:, 1:]])
        scored = counted > 0
        counted -= prefix_bytes * ((tokens[:, :-1] == before[-1]) & scored)
        return cls(tokens, scored, counted, documents)

    def rows(self, chosen: np.ndarray) -> "Windows":
        """Return some of the windows. `chosen` holds their indices, int64."""
        return rows_of(self, chosen)

    def first_tokens(self, count: int) -> list[list[int]]:
        """Return the first `count` tokens of each document, or fewer if the windows contain fewer; empty for a task."""
        if self.documents is None:
            return []
        numbers, tokens = self.documents.ravel(), self.tokens[:, 1:].ravel()
        ends = np.flatnonzero(np.diff(numbers, append=numbers[-1] + 1)) + 1
        return [tokens[begin : min(begin + count, end)].tolist() for begin, end in pairwise([0, *ends])]


_Arrays = TypeVar("_Arrays", bound="DataclassInstance")


def rows_of(arrays: _Arrays, chosen: slice | np.ndarray) -> _Arrays:
    """Return the chosen rows of every array of a dataclass. A field may be None instead of an array."""
    named = {field.name: getattr(arrays, field.name) for field in fields(arrays)}
    return replace(arrays, **{name: array[chosen] for name, array in named.items() if array is not None})


def _documents(tokens: np.ndarray, end_of_text: int, continues: np.ndarray) -> np.ndarray:
    begins = tokens[:, 1:] == end_of_text
    begins[:, 0] |= ~continues
    return begins.cumsum().reshape(begins.shape) - int(begins[0, 0])


class TrainingData(Protocol):
    """Text or task from which a run takes its windows.

    The windows depend only on the arguments of `windows`, so the step is enough to resume a run.
    """

    @property
    def fingerprint(self) -> str:
        """Hash of the tokens, as 16 hex digits. The hash does not depend on which fold is held out."""
        ...

    @property
    def n_folds(self) -> int:
        """Number of parts that can each be held out."""
        ...

    @property
    def tokenizer(self) -> Path | None:
        """File of the tokenizer; None if the tokens do not come from text."""
        ...

    @property
    def special(self) -> SpecialIds:
        """Ids of the special tokens."""
        ...

    @property
    def form(self) -> DataForm:
        """Form of the data. Windows of pairs have `source_lengths` and `lengths`. Several conversations share a
        window."""
        ...

    @property
    def inexact(self) -> str | None:
        """Reason why bits per byte cannot be computed: the tokens do not represent every byte of the text.

        None if they do, and for a task.
        """
        ...

    def windows(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """Return the `batch_size` windows of a training step, each with `seq_len` + 1 tokens.

        For pairs of texts, a step may instead have n times as many windows of `seq_len / n` + 1 tokens.
        """
        ...

    def passes(self, n_steps: int, batch_size: int, seq_len: int) -> Mapping[str, float]:
        """Return, for each source of text, how many times a run of `n_steps` steps reads it completely.

        The arguments `batch_size` and `seq_len` are those of `windows`. The result is empty for a task.
        """
        ...

    def held_out(self, seq_len: int, n_tokens: int | None) -> Windows:
        """Return about `n_tokens` tokens that are never trained on, always the same ones.

        If `n_tokens` is None, return all held-out tokens.
        """
        ...

    def beginnings(self, windows: Windows) -> list[str]:
        """Return the beginning of each document, as far as the windows contain it; empty for a task."""
        ...
