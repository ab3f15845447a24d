"""Text as what a run reads."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from archlab.data.held_out import HeldOut
from archlab.data.sampler import batch, held_out_starts
from archlab.data.shards import DataFolder
from archlab.data.tokenizer import TOKENIZER
from archlab.data.training_data import Windows

_BEGINNING = 24
"""Tokens by which a person knows a document again."""


@dataclass(frozen=True)
class TextData:
    """Text, of which one fold is held out."""

    folder: DataFolder

    @property
    def fingerprint(self) -> str:
        """Of the folder."""
        return self.folder.fingerprint

    @property
    def known_tokens(self) -> int:
        """The tokenizer's."""
        return self.folder.manifest.vocab_size

    @property
    def n_folds(self) -> int:
        """The folder's."""
        return len(self.folder.manifest.folds)

    @property
    def tokenizer(self) -> Path:
        """The folder's."""
        return self.folder.path / TOKENIZER

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """All tokens are trained on."""
        return Windows(batch(self.folder, seed, step, batch_size, seq_len))

    def held_out(self, seq_len: int, n_tokens: int | None, *, masked: bool) -> HeldOut:
        """Spread evenly over the fold."""
        folder = self.folder
        starts = held_out_starts(folder, seq_len, n_tokens or len(folder.held_out))
        tokens = folder.held_out.windows(starts, seq_len + 1)
        end = folder.manifest.end_of_text

        def goes_on_at(before: int, start: int) -> bool:
            gap = before + seq_len + 1, start + 1
            return gap[0] == gap[1] or end not in folder.held_out.read(*gap)

        goes_on = np.array([False, *(goes_on_at(int(before), int(start)) for before, start in pairwise(starts))])
        return HeldOut.of_text(tokens, folder.token_bytes, end, goes_on=goes_on, masked=masked)

    def beginnings(self, held_out: HeldOut) -> list[str]:
        """The first tokens of each as text."""
        first = held_out.first_tokens(_BEGINNING)
        return [" ".join(text.split()) for text in self.folder.tokenizer.decode_batch(first)]

    def __str__(self) -> str:
        return str(self.folder)
