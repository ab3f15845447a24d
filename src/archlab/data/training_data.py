"""What a run reads: windows to train on and windows by which it is judged, of text or of a task."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from archlab.data.held_out import HeldOut


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
