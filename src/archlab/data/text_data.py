"""Text as what a run reads: one data folder, or a mixture of several."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from archlab.data.held_out import HeldOut
from archlab.data.sampler import (
    divided,
    held_out_starts,
    held_out_windows,
    samples,
    window_starts,
    windows_per_epoch,
)
from archlab.data.shards import DataFolder, Tokens
from archlab.data.tokenizer import TOKENIZER
from archlab.data.training_data import Windows
from archlab.errors import UserError

_GAP = 1 << 16
"""Tokens between two windows that are read at once; mostly a document begins among the first."""

_BEGINNING = 24
"""Tokens by which a person knows a document again."""


@dataclass(frozen=True)
class Source:
    """A data folder, of which one fold is held out, and its share of the windows relative to the others' weights."""

    name: str
    folder: DataFolder
    weight: float = 1.0


@dataclass(frozen=True)
class TextData:
    """Text of one source, or of several with the same tokenizer."""

    sources: Sequence[Source]

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

    def _long_enough(self, source: Source, split: str, seq_len: int) -> Tokens:
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
