"""Conversations as training data.

A window holds several whole conversations, one after another, and padding after them. Attention is masked between them,
and only the tokens of responses count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from archlab.data.chat_limits import check_longest
from archlab.data.packing import Packing
from archlab.data.reserved import SpecialIds
from archlab.data.shards import BEGINS, COUNTS, TOKEN_ID, ChatFacts, Tokens
from archlab.data.spelling import prefix_after_special, special_tokens
from archlab.data.text_data import TextData, samples
from archlab.data.training_data import Windows


@dataclass(frozen=True)
class ChatData(TextData):
    """Conversations from one data folder."""

    @property
    def special(self) -> SpecialIds:
        return replace(super().special, responses=self._facts.ends)

    def windows(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """Return the windows of a training step. The tokens of responses count."""
        packing = self._packing(seq_len)
        epochs, numbers = np.divmod(np.array(samples(step, batch_size)), packing.n_windows)
        rows = list[np.ndarray]()
        for epoch in np.unique(epochs):  # in ascending order, as the samples
            rows += packing.of_epoch(numbers[epochs == epoch], seed, int(epoch))
        return self._train.windows(rows, seq_len)

    def passes(self, n_steps: int, batch_size: int, seq_len: int) -> Mapping[str, float]:
        return {source.name: n_steps * batch_size / self._packing(seq_len).n_windows for source in self.sources}

    def padding(self, seq_len: int) -> float:
        """Return the fraction of padding among the tokens of an epoch's training windows."""
        return 1 - self._train.lengths.sum() / (self._packing(seq_len).n_windows * (seq_len + 1))

    def counted_per_window(self, seq_len: int) -> float:
        """Return the mean number of tokens that count in a training window of `seq_len` tokens."""
        return self._train.n_counted / self._packing(seq_len).n_windows

    def held_out(self, seq_len: int, n_tokens: int | None) -> Windows:
        """Return windows of held-out conversations, spread evenly over all windows of the fold."""
        self._check(seq_len)
        conversations = _Conversations.of(self._first.held_out, self._first.manifest.end_of_text)
        packing = Packing.of(conversations.lengths, seq_len + 1)
        n_windows = packing.n_windows
        count = n_windows if n_tokens is None else min(max(n_tokens // seq_len, 1), n_windows)
        rows = packing.in_order(np.arange(count) * n_windows // count)
        windows = conversations.windows(rows, seq_len)
        assert windows.conversations is not None
        assert windows.scored is not None
        counts = np.array([len(row) for row in rows])
        own = np.minimum(windows.conversations, counts[:, None] - 1)  # padding joins the last conversation
        documents = own + (counts.cumsum() - counts)[:, None]
        text_bytes = None if self.inexact else np.where(windows.scored, self._bytes(windows.tokens), 0)
        return replace(windows, bytes=text_bytes, documents=documents[:, 1:])

    def _bytes(self, tokens: np.ndarray) -> np.ndarray:
        """Return the number of bytes of text of each token after the first, int [n, T]."""
        added = len(prefix_after_special(self._first.tokenizer)) * ~self._is_special[tokens[:, 1:]]
        return self._first.token_bytes[tokens[:, 1:]] - added * self._is_special[tokens[:, :-1]]

    @cached_property
    def _is_special(self) -> np.ndarray:
        is_special = np.zeros(self._first.manifest.vocab_size, bool)
        is_special[special_tokens(self._first.tokenizer)] = True
        return is_special

    @cached_property
    def _train(self) -> "_Conversations":
        return _Conversations.of(self._first.train, self._first.manifest.end_of_text)

    def _packing(self, seq_len: int) -> Packing:
        self._check(seq_len)
        return self._cached_packing(seq_len)

    @cached_property
    def _cached_packing(self) -> Callable[[int], Packing]:
        return lru_cache(2)(lambda seq_len: Packing.of(self._train.lengths, seq_len + 1))

    def _check(self, seq_len: int) -> None:
        check_longest(self._facts, seq_len)

    @property
    def _facts(self) -> ChatFacts:
        assert self._first.manifest.chat is not None
        return self._first.manifest.chat


@dataclass(frozen=True)
class _Conversations:
    """Conversations of one split. The arrays have one element per conversation."""

    tokens: Tokens
    padding: int
    """Token that fills the rest of a window."""
    starts: np.ndarray
    """Index of the first token, int64."""
    lengths: np.ndarray
    """Number of tokens, int64."""
    n_counted: int
    """Number of tokens of all responses."""

    @classmethod
    def of(cls, tokens: Tokens, padding: int) -> "_Conversations":
        starts, n_counted = list[np.ndarray](), 0
        for start, block in tokens.blocks():
            starts.append(np.flatnonzero(block & int(BEGINS)) + start)
            n_counted += int(np.count_nonzero(block & int(COUNTS)))
        all_starts = np.concatenate(starts)
        return cls(tokens, padding, all_starts, np.diff(all_starts, append=len(tokens)), n_counted)

    def windows(self, rows: Sequence[np.ndarray], seq_len: int) -> Windows:
        """Return a window of `seq_len` + 1 tokens for each row of conversations."""
        shape = len(rows), seq_len + 1
        flagged, conversations = np.full(shape, self.padding, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        lengths = np.zeros(len(rows), dtype=np.int64)
        for n, row in enumerate(rows):
            conversations[n] = len(row)
            for number, conversation in enumerate(row):
                begin, length = lengths[n], self.lengths[conversation]
                start = int(self.starts[conversation])
                flagged[n, begin : begin + length] = self.tokens.read(start, start + int(length))
                conversations[n, begin : begin + length] = number
                lengths[n] += length
        scored = (flagged[:, 1:] & int(COUNTS)) != 0
        return Windows(flagged & TOKEN_ID, scored, lengths=lengths, conversations=conversations)
