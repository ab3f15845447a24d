"""Pairs of texts as training data.

A window is one pair: `[source..., target..., end, padding...]`. The tokens that begin a document precede both texts.
They separate the target from the source, and the first of them ends the target.

The windows of a training step have the same width: `seq_len` tokens, or a half or a quarter of that. A narrow step has
as many times more windows, so every step has `batch_size * seq_len` tokens. All steps together compute little padding,
because a step takes only pairs that need about its width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from archlab.data.pair_limits import check_lengths
from archlab.data.shards import Tokens
from archlab.data.text_data import BEGINNING, TextData, distribute_samples, samples
from archlab.data.training_data import Windows

_DIVISORS = (1, 2, 4)
"""Divisors of `seq_len` that give the widths of training windows. torch.compile compiles each width separately."""


@dataclass(frozen=True)
class PairData(TextData):
    """Pairs of a source and a target from one data folder."""

    def windows(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """Return the windows of a training step: `batch_size` windows of `seq_len` tokens, or two or four times as many
        shorter ones. All tokens of the targets count.

        The widths take turns, each as often as its pairs require. Each pair is read once before a pair of the same
        width is read again.
        """
        widths = self._widths(batch_size, seq_len)
        (chosen,), (number,) = distribute_samples([width.steps_per_epoch for width in widths], samples(step, 1))
        width = widths[chosen]
        epochs, indices = np.divmod(np.array(samples(int(number), width.n_windows)), len(width.pairs))
        pairs = np.empty(len(epochs), dtype=np.int64)
        for epoch in np.unique(epochs):
            now = epochs == epoch
            pairs[now] = width.pairs[_order(len(width.pairs), seed, int(epoch), width.n_tokens)[indices[now]]]
        return self._train.windows(pairs, width.n_tokens)

    def passes(self, n_steps: int, batch_size: int, seq_len: int) -> Mapping[str, float]:
        steps_per_epoch = sum(width.steps_per_epoch for width in self._widths(batch_size, seq_len))
        return {source.name: n_steps / steps_per_epoch for source in self.sources}

    def padding(self, batch_size: int, seq_len: int) -> float:
        """Return the fraction of padding among the tokens of an epoch's training windows."""
        widths = self._widths(batch_size, seq_len)
        lengths = self._train.lengths
        used = sum(int(lengths[width.pairs].sum()) for width in widths)
        return 1 - used / sum(len(width.pairs) * width.n_tokens for width in widths)

    def held_out(self, seq_len: int, n_tokens: int | None) -> Windows:
        """Return a window of `seq_len` tokens for each of `n_tokens // seq_len` pairs, spread evenly over the fold."""
        self._check(seq_len)
        pairs = _Pairs.of(self._first.held_out, self._first.document_tokens)
        count = len(pairs) if n_tokens is None else min(max(n_tokens // seq_len, 1), len(pairs))
        windows = pairs.windows(np.arange(count) * len(pairs) // count, seq_len)
        assert windows.scored is not None
        documents = np.repeat(np.arange(count)[:, None], seq_len, axis=1)
        text_bytes = None if self.inexact else self._bytes(windows.tokens, windows.scored)
        return replace(windows, bytes=text_bytes, documents=documents)

    def beginnings(self, windows: Windows) -> list[str]:
        """Return the beginning of each source."""
        assert windows.source_lengths is not None
        n_before = len(self._first.document_tokens)
        ends = np.minimum(windows.source_lengths - n_before, n_before + BEGINNING).tolist()
        sources = [tokens[n_before:end].tolist() for tokens, end in zip(windows.tokens, ends, strict=True)]
        return [" ".join(text.split()) for text in self._first.tokenizer.decode_batch(sources)]

    def _bytes(self, tokens: np.ndarray, scored: np.ndarray) -> np.ndarray:
        """Return the number of bytes of each token of the targets, int [n, T]; 0 for all other tokens."""
        is_first = tokens[:, :-1] == self._first.document_tokens[-1]
        text_bytes = self._first.token_bytes[tokens[:, 1:]] - self._first.prefix_bytes * is_first
        return np.where(scored & (tokens[:, 1:] != self._first.document_tokens[0]), text_bytes, 0)

    @cached_property
    def _train(self) -> "_Pairs":
        return _Pairs.of(self._first.train, self._first.document_tokens)

    def _widths(self, batch_size: int, seq_len: int) -> "Sequence[Width]":
        self._check(seq_len)
        return self._cached_widths(batch_size, seq_len)

    @cached_property
    def _cached_widths(self) -> "Callable[[int, int], Sequence[Width]]":
        return lru_cache(2)(partial(divided_by_width, self._train.needed))

    def _check(self, seq_len: int) -> None:
        facts = self._first.manifest.pairs
        assert facts is not None
        check_lengths(facts, len(self._first.document_tokens), seq_len)


@dataclass(frozen=True)
class _Pairs:
    """Pairs of one split. The arrays have one element per pair."""

    tokens: Tokens
    end: int
    """Token that ends a target, and that fills the rest of a window."""
    starts: np.ndarray
    """Index of the first token of each source, int64."""
    source_lengths: np.ndarray
    """Number of tokens of each source, int64. It includes the tokens that precede the source and those that precede the
    target."""
    lengths: np.ndarray
    """Number of tokens of each pair, including its end, int64."""

    @classmethod
    def of(cls, tokens: Tokens, before: Sequence[int]) -> "_Pairs":
        """Find the pairs: each document is a source, and the next document is its target."""
        begins = [np.flatnonzero(block == before[0]) + start for start, block in tokens.blocks()]
        borders = np.concatenate([*begins, [len(tokens)]])
        starts, targets, ends = borders[:-1:2], borders[1::2], borders[2::2]
        return cls(tokens, before[0], starts, targets - starts + len(before), ends - starts + 1)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def needed(self) -> np.ndarray:
        """Smallest width of a window that holds each pair: twice the tokens of the longer side, int64."""
        return 2 * np.maximum(self.source_lengths, self.lengths - self.source_lengths)

    def windows(self, numbers: np.ndarray, width: int) -> Windows:
        """Return a window of `width` + 1 tokens for each pair of the given numbers."""
        tokens = np.full((len(numbers), width + 1), self.end, dtype=np.int64)
        for row, start, length in zip(tokens, self.starts[numbers], self.lengths[numbers], strict=True):
            row[: length - 1] = self.tokens.read(int(start), int(start + length - 1))
        return Windows.of_pairs(tokens, self.source_lengths[numbers], self.lengths[numbers])


@dataclass(frozen=True)
class Width:
    """Pairs that are read in windows of the same width."""

    n_tokens: int
    """Width: number of tokens of a window."""
    n_windows: int
    """Number of windows of a step."""
    pairs: np.ndarray
    """Numbers of the pairs, int64, in ascending order of the width that they need."""

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps that read all these pairs once."""
        return len(self.pairs) / self.n_windows


def divided_by_width(needed: np.ndarray, batch_size: int, seq_len: int) -> Sequence[Width]:
    """Divide pairs by the width of their windows, from the widest to the narrowest.

    A pair is read in the narrowest windows that hold it. There is one exception: if a width has fewer pairs than a step
    has windows, shorter pairs join it.

    Args:
        needed: Smallest width that holds each pair, int64.
        batch_size: Number of windows of a step of the widest windows, which have `seq_len` tokens.
    """
    ascending, end = np.argsort(needed, kind="stable"), len(needed)
    widths = [seq_len // divisor for divisor in _DIVISORS if seq_len % divisor == 0]
    n_windows = [batch_size * seq_len // width for width in widths]
    divided = list[Width]()
    for width, n, narrower, n_narrower in zip(widths, n_windows, [*widths[1:], 0], [*n_windows[1:], 0], strict=True):
        first = int(np.count_nonzero(needed <= narrower))
        start = min(first, max(end - n, 0)) if first < end else end
        if start < n_narrower:
            start = 0
        if start < end:
            divided.append(Width(width, n, ascending[start:end]))
        end = start
    return divided


@lru_cache(8)
def _order(count: int, seed: int, epoch: int, width: int) -> np.ndarray:
    """Return the numbers 0 ... count - 1 in the random order of an epoch, int64."""
    # numpy promises the same raw bits in every version, but not the same permutation().
    return np.argsort(np.random.PCG64([seed, epoch, width]).random_raw(count), kind="stable")
