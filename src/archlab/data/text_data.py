"""Text as what a run reads: one data folder, or a mixture of several."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from archlab.data.shards import DataFolder, Tokens
from archlab.data.tokenizer import TOKENIZER
from archlab.data.training_data import HeldOut, Windows
from archlab.errors import UserError

_GAP = 1 << 16
"""Tokens between two windows that are read at once; mostly a document begins among the first."""

_ORDERS_KEPT = 64
"""Sources whose order of windows is kept in memory; that of any further source is made again for each batch."""

_BEGINNING = 24
"""Tokens by which a person knows a document again."""


@dataclass(frozen=True)
class TextSource:
    """A data folder, of which one fold is held out, and its share of the windows relative to the others' weights."""

    name: str
    folder: DataFolder
    weight: float = 1.0


@dataclass(frozen=True)
class TextData:
    """Text of one source, or of several with the same tokenizer."""

    sources: Sequence[TextSource]

    @property
    def fingerprint(self) -> str:
        """The folder's; of a mixture, of its folders and their weights."""
        if len(self.sources) == 1:
            return self._first.fingerprint
        content = [[source.folder.fingerprint, source.weight] for source in self.sources]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def known_tokens(self) -> int:
        """The tokenizer's."""
        return self._first.manifest.vocab_size

    @property
    def n_folds(self) -> int:
        """As many as every folder has."""
        return min(len(source.folder.manifest.folds) for source in self.sources)

    @property
    def tokenizer(self) -> Path:
        """The folder's."""
        return self._first.path / TOKENIZER

    @property
    def document_token(self) -> int:
        """The folder's."""
        return self._first.manifest.end_of_text

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """All tokens are trained on."""
        chosen, numbers = divided(self._weights, samples(step, batch_size))
        tokens = np.empty((len(chosen), seq_len + 1), dtype=np.int64)
        for n in np.unique(chosen):
            train = self._long_enough(self.sources[n], "training", seq_len)
            starts = window_starts(len(train), seq_len, seed, numbers[chosen == n])
            tokens[chosen == n] = train.windows(starts, seq_len + 1)
        return Windows(tokens)

    def passes(self, n_windows: int, seq_len: int) -> Mapping[str, float]:
        """In its share of them."""
        each = n_windows / sum(self._weights)
        return {s.name: each * s.weight / windows_per_epoch(len(s.folder.train), seq_len) for s in self.sources}

    def held_out(self, seq_len: int, n_tokens: int | None, *, masked: bool) -> HeldOut:
        """Spread evenly over the fold; of a mixture, over those of all sources, in the shares in which they are
        trained on, as far as every source has its share."""
        folds = [self._long_enough(source, "held-out", seq_len) for source in self.sources]
        available = np.array([held_out_windows(len(fold), seq_len) for fold in folds])
        wanted = available.sum() if n_tokens is None else max(n_tokens // seq_len, 1)
        chosen, numbers = divided(self._weights, range(wanted))
        used_up = np.flatnonzero(numbers >= available[chosen])
        counts = np.bincount(chosen[: used_up[0] if len(used_up) else None], minlength=len(folds))
        end, found = self._first.manifest.end_of_text, list[tuple[np.ndarray, np.ndarray]]()
        for fold, count in zip(folds, counts.tolist(), strict=True):
            if count:
                starts = held_out_starts(len(fold), seq_len, count)
                found.append((fold.windows(starts, seq_len + 1), _goes_on(fold, starts, seq_len, end)))
        tokens, goes_on = (np.concatenate(parts) for parts in zip(*found, strict=True))
        sizes, prefix = self._first.token_bytes, self._first.prefix_bytes
        before = self._first.document_tokens
        return HeldOut.of_text(tokens, sizes, before, prefix, goes_on=goes_on, masked=masked)

    def beginnings(self, held_out: HeldOut) -> list[str]:
        """The first tokens of each as text."""
        first = held_out.first_tokens(_BEGINNING)
        return [" ".join(text.split()) for text in self._first.tokenizer.decode_batch(first)]

    @property
    def _first(self) -> DataFolder:
        return self.sources[0].folder

    @property
    def _weights(self) -> list[float]:
        return [source.weight for source in self.sources]

    def _long_enough(self, source: TextSource, split: str, seq_len: int) -> Tokens:
        """The tokens of a split; UserError where they are shorter than a window."""
        tokens = source.folder.train if split == "training" else source.folder.held_out
        if len(tokens) <= seq_len:
            found = f"the {split} text of {source.folder.manifest.source} has {len(tokens)} tokens"
            raise UserError(f"train.seq_len: {seq_len}; {found}; allowed: up to {len(tokens) - 1}, or more text")
        return tokens

    def __str__(self) -> str:
        if len(self.sources) == 1:
            return str(self._first)
        total = sum(self._weights)
        return "; ".join(f"{s.weight / total:.1%} of windows from {s.name}: {s.folder}" for s in self.sources)


def _goes_on(fold: Tokens, starts: np.ndarray, seq_len: int, end_of_text: int) -> np.ndarray:
    """bool [n]: whether each window begins in the document with which the one before ends."""

    def at(before: int, start: int) -> bool:
        parts = range(before + seq_len + 1, start + 1, _GAP)
        return not any(end_of_text in fold.read(part, min(part + _GAP, start + 1)) for part in parts)

    return np.array([False, *(at(int(before), int(start)) for before, start in pairwise(starts))])


# --- which windows: pure functions of seed and step, so resuming is one integer ---------------------------------------


def samples(step: int, batch_size: int) -> range:
    """Which samples are read at a step, counted over the whole run from 0 on."""
    return range(step * batch_size, (step + 1) * batch_size)


def divided(weights: Sequence[float], wanted: range) -> tuple[np.ndarray, np.ndarray]:
    """Of each sample of a mixture, int64: the number of its source, and its own number among that source's samples.

    The first n samples are shared out as Webster (Sainte-Lague) shares out n seats: sample j of a source is due at
    (j + 1/2) / weight, and they come in the order in which they are due. So after any number of samples a source has
    had its share of them, give or take 1/2 + half its share of the number of sources.
    """
    each, n = np.array(weights, dtype=np.float64), len(weights)
    total = each.sum()
    low = np.maximum(np.floor(each * (wanted.start - n) / total) - 1, 0).astype(np.int64)
    high = (np.ceil(each * (wanted.stop + n) / total) + 1).astype(np.int64)
    source = np.repeat(np.arange(n), high - low)
    number = np.concatenate([np.arange(*ends) for ends in zip(low, high, strict=True)])
    first = wanted.start - int(low.sum())  # all before `low` are due earlier than these
    order = np.lexsort((source, (number + 0.5) / each[source]))[first : first + len(wanted)]
    return source[order], number[order]


def windows_per_epoch(n_tokens: int, seq_len: int) -> int:
    """Training windows in one pass over the text; a remainder is left, so that each epoch begins at another token."""
    return max((n_tokens - seq_len) // seq_len, 1)


def window_starts(n_tokens: int, seq_len: int, seed: int, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64 [len(numbers)]: where those windows begin, counted over the whole run from 0 on."""
    order = _order(n_tokens, seq_len, seed)
    epochs, indices = np.divmod(np.asarray(numbers, dtype=np.int64), windows_per_epoch(n_tokens, seq_len))
    starts = np.empty(len(epochs), dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        starts[chosen] = order(int(epoch))[indices[chosen]]
    return starts


@lru_cache(_ORDERS_KEPT)
def _order(n_tokens: int, seq_len: int, seed: int) -> Callable[[int], np.ndarray]:
    """Of an epoch's number; two of them are kept, for a batch may span them."""
    return lru_cache(2)(partial(_epoch, n_tokens, seq_len, seed))


def _epoch(n_tokens: int, seq_len: int, seed: int, epoch: int) -> np.ndarray:
    """Starts of an epoch's windows: multiples of seq_len after a random offset, in random order."""
    count = windows_per_epoch(n_tokens, seq_len)
    # numpy promises the same raw bits in every version, but not the same permutation().
    bits = np.random.PCG64([seed, epoch]).random_raw(count + 1)
    offset = int(bits[-1] % np.uint64(n_tokens - count * seq_len))
    return np.argsort(bits[:-1], kind="stable") * seq_len + offset


def held_out_starts(n_tokens: int, seq_len: int, count: int) -> np.ndarray:
    """int64 [count]: where always the same windows of a held-out text begin, spread evenly; they do not overlap."""
    return np.arange(count) * held_out_windows(n_tokens, seq_len) // count * seq_len


def held_out_windows(n_tokens: int, seq_len: int) -> int:
    """How many there are that do not overlap."""
    return (n_tokens - 1) // seq_len
