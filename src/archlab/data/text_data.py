"""Text as training data: one data folder, or a mixture of several."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from archlab.config.objective import DataForm
from archlab.data.reserved import SpecialIds, special_ids
from archlab.data.shards import DataFolder, Tokens
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.hf.folder import TOKENIZER

_GAP = 1 << 16
"""Number of tokens that each step of the search for a document boundary between two windows reads.

Usually, the first step finds a boundary.
"""

_ORDERS_KEPT = 64
"""Number of sources whose order of windows stays in memory. For other sources, the order is computed for each batch."""

BEGINNING = 24
"""Number of tokens at the beginning of a document that are shown to identify it."""


@dataclass(frozen=True)
class TextSource:
    """A data folder with one held-out fold, and its weight in a mixture.

    The fraction of windows from a source is proportional to its weight.
    """

    name: str
    folder: DataFolder
    weight: float = 1.0


@dataclass(frozen=True)
class TextData:
    """Text of one source, or of several sources with the same tokenizer."""

    sources: Sequence[TextSource]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the folder, or a hash of the folders and weights of a mixture."""
        if len(self.sources) == 1:
            return self._first.fingerprint
        content = [[source.folder.fingerprint, source.weight] for source in self.sources]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def n_folds(self) -> int:
        return min(len(source.folder.manifest.folds) for source in self.sources)

    @property
    def tokenizer(self) -> Path:
        return self._first.path / TOKENIZER

    @property
    def special(self) -> SpecialIds:
        return self._special

    @property
    def form(self) -> DataForm:
        return self._first.manifest.form

    @property
    def inexact(self) -> str | None:
        return next((reason for source in self.sources if (reason := source.folder.manifest.inexact)), None)

    def windows(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """Return the windows of a training step. All tokens may count."""
        chosen, numbers = distribute_samples(self._weights, samples(step, batch_size))
        tokens = np.empty((len(chosen), seq_len + 1), dtype=np.int64)
        for n in np.unique(chosen):
            train = self._long_enough(self.sources[n], "training", seq_len)
            starts = window_starts(len(train), seq_len, seed, numbers[chosen == n])
            tokens[chosen == n] = train.windows(starts, seq_len + 1)
        return Windows(tokens)

    def passes(self, n_steps: int, batch_size: int, seq_len: int) -> Mapping[str, float]:
        windows_per_weight = n_steps * batch_size / sum(self._weights)
        return {
            s.name: windows_per_weight * s.weight / windows_per_epoch(len(s.folder.train), seq_len)
            for s in self.sources
        }

    def held_out(self, seq_len: int, n_tokens: int | None) -> Windows:
        """Return held-out windows that are spread evenly over the fold.

        In a mixture, windows are taken from the sources alternately, in the same proportions as in training. The result
        ends as soon as a window is due from a source that has no more windows.
        """
        folds = [self._long_enough(source, "held-out", seq_len) for source in self.sources]
        available = np.array([held_out_windows(len(fold), seq_len) for fold in folds])
        n_windows = available.sum() if n_tokens is None else max(n_tokens // seq_len, 1)
        chosen, numbers = distribute_samples(self._weights, range(n_windows))
        used_up = np.flatnonzero(numbers >= available[chosen])
        counts = np.bincount(chosen[: used_up[0] if len(used_up) else None], minlength=len(folds))
        end, parts_of_sources = self._first.manifest.end_of_text, list[tuple[np.ndarray, np.ndarray]]()
        for fold, count in zip(folds, counts.tolist(), strict=True):
            if count:
                starts = held_out_starts(len(fold), seq_len, count)
                parts_of_sources.append((fold.windows(starts, seq_len + 1), _continues(fold, starts, seq_len, end)))
        tokens, continues = (np.concatenate(parts) for parts in zip(*parts_of_sources, strict=True))
        sizes, prefix = None if self.inexact else self._first.token_bytes, self._first.prefix_bytes
        before = self._first.document_tokens
        return Windows.of_text(tokens, sizes, before, prefix, continues=continues)

    def beginnings(self, windows: Windows) -> list[str]:
        first = windows.first_tokens(BEGINNING)
        return [" ".join(text.split()) for text in self._first.tokenizer.decode_batch(first)]

    @cached_property
    def _special(self) -> SpecialIds:
        first = self._first
        return special_ids(first.tokenizer, first.manifest.vocab_size, first.document_tokens)

    @property
    def _first(self) -> DataFolder:
        return self.sources[0].folder

    @property
    def _weights(self) -> list[float]:
        return [source.weight for source in self.sources]

    def _long_enough(self, source: TextSource, split: str, seq_len: int) -> Tokens:
        tokens = source.folder.train if split == "training" else source.folder.held_out
        if len(tokens) <= seq_len:
            problem = f"the {split} text of {source.folder.manifest.source} has only {len(tokens)} tokens"
            raise UserError(
                f"train.seq_len is {seq_len}; {problem}; allowed: up to {len(tokens) - 1}, or use more text"
            )
        return tokens

    def __str__(self) -> str:
        if len(self.sources) == 1:
            return str(self._first)
        total = sum(self._weights)
        return "; ".join(f"{s.weight / total:.1%} of windows from {s.name}: {s.folder}" for s in self.sources)


def _continues(fold: Tokens, starts: np.ndarray, seq_len: int, end_of_text: int) -> np.ndarray:
    """Return, as bool [n], whether each window begins in the document in which the previous window ends."""

    def at(before: int, start: int) -> bool:
        parts = range(before + seq_len + 1, start + 1, _GAP)
        return not any(end_of_text in fold.read(part, min(part + _GAP, start + 1)) for part in parts)

    return np.array([False, *(at(int(before), int(start)) for before, start in pairwise(starts))])


# --- choice of windows: pure functions of seed and step, so a run resumes from a single integer -----------------------


def samples(step: int, batch_size: int) -> range:
    """Return the sample indices of a step, counted from 0 over the whole run."""
    return range(step * batch_size, (step + 1) * batch_size)


def distribute_samples(weights: Sequence[float], sample_range: range) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each sample of a mixture, the index of its source and its index among that source's samples.

    Both arrays are int64. Samples are distributed like seats in Webster's method (Sainte-Laguë). Sample j of a source
    is due at (j + 1/2) / weight, and samples are ordered by due time. After any number of samples, each source has had
    its share of the samples. The deviation is at most 1/2 + (number of sources) * share / 2.
    """
    shares, n = np.array(weights, dtype=np.float64), len(weights)
    total = shares.sum()
    low = np.maximum(np.floor(shares * (sample_range.start - n) / total) - 1, 0).astype(np.int64)
    high = (np.ceil(shares * (sample_range.stop + n) / total) + 1).astype(np.int64)
    source = np.repeat(np.arange(n), high - low)
    number = np.concatenate([np.arange(*ends) for ends in zip(low, high, strict=True)])
    first = sample_range.start - int(low.sum())  # all samples before `low` are due earlier
    order = np.lexsort((source, (number + 0.5) / shares[source]))[first : first + len(sample_range)]
    return source[order], number[order]


def windows_per_epoch(n_tokens: int, seq_len: int) -> int:
    """Return the number of training windows in one pass over the text.

    Some tokens are left over, so that each epoch can begin at a different token.
    """
    return max((n_tokens - seq_len) // seq_len, 1)


def window_starts(n_tokens: int, seq_len: int, seed: int, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the index of the first token of each window as int64 [len(numbers)].

    `numbers` are the indices of the windows, counted from 0 over the whole run.
    """
    order = _order(n_tokens, seq_len, seed)
    epochs, indices = np.divmod(np.asarray(numbers, dtype=np.int64), windows_per_epoch(n_tokens, seq_len))
    starts = np.empty(len(epochs), dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        starts[chosen] = order(int(epoch))[indices[chosen]]
    return starts


@lru_cache(_ORDERS_KEPT)
def _order(n_tokens: int, seq_len: int, seed: int) -> Callable[[int], np.ndarray]:
    """Return a function from an epoch's index to the starts of its windows, in random order.

    The windows start at multiples of seq_len after a random offset. Two epochs are cached, because a batch may span
    them.
    """
    return lru_cache(2)(partial(_epoch, n_tokens, seq_len, seed))


def _epoch(n_tokens: int, seq_len: int, seed: int, epoch: int) -> np.ndarray:
    count = windows_per_epoch(n_tokens, seq_len)
    # numpy promises the same raw bits in every version, but not the same permutation().
    bits = np.random.PCG64([seed, epoch]).random_raw(count + 1)
    offset = int(bits[-1] % np.uint64(n_tokens - count * seq_len))
    return np.argsort(bits[:-1], kind="stable") * seq_len + offset


def held_out_starts(n_tokens: int, seq_len: int, count: int) -> np.ndarray:
    """Return the starts of held-out windows as int64 [count].

    The starts are always the same and are spread evenly over the text. The windows do not overlap.
    """
    return np.arange(count) * held_out_windows(n_tokens, seq_len) // count * seq_len


def held_out_windows(n_tokens: int, seq_len: int) -> int:
    """Return the number of held-out windows, which do not overlap."""
    return (n_tokens - 1) // seq_len
