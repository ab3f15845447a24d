"""What a run reads: windows to train on and windows by which it is judged, of text or of a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from archlab.data.held_out import HeldOut
from archlab.data.sampler import batch, held_out_starts
from archlab.data.shards import DataFolder
from archlab.data.tokenizer import TOKENIZER

_BEGINNING = 24
"""Tokens by which a person knows a document again."""


class Windows(NamedTuple):
    """Windows of tokens in which each is predicted from those before it."""

    tokens: np.ndarray
    """int64 [n, T + 1]."""
    scored: np.ndarray | None = None
    """bool [n, T]: which predicted tokens are trained on; None: all."""


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
    def tokenizer(self) -> Path | None:
        """The file that turns text into these tokens; None where they are no text."""
        ...

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """What a step trains on; so many windows of seq_len predicted tokens."""
        ...

    def held_out(self, seq_len: int, n_tokens: int | None, *, masked: bool) -> HeldOut:
        """About so many tokens that are never trained on, always the same; None: all there are. `masked`: documents do
        not see each other."""
        ...

    def beginnings(self, held_out: HeldOut) -> list[str]:
        """How each document begins, as far as it is in the windows; empty for a task."""
        ...


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
        return HeldOut.of_text(tokens, folder.token_bytes, folder.manifest.end_of_text, starts=starts, masked=masked)

    def beginnings(self, held_out: HeldOut) -> list[str]:
        """The first tokens of each as text."""
        first = held_out.first_tokens(_BEGINNING)
        return [" ".join(text.split()) for text in self.folder.tokenizer.decode_batch(first)]

    def __str__(self) -> str:
        return str(self.folder)
