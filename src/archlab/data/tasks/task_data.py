"""A task as what a run reads."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from archlab.config.core.registry import is_users, source_digest
from archlab.config.tasks import Task
from archlab.data.tasks.windows import windows
from archlab.data.training_data import HeldOut, Windows

STREAMS = 1_000_000
"""Of held-out windows, of which each seed of a study takes one."""

N_FOLDS = 2 * STREAMS
"""Streams have no end: one for each seed that a study may have, and as many more."""

ALL_THERE_ARE = 65_536
"""Held-out tokens where a number is not given; there is no end to them."""


@dataclass(frozen=True)
class TaskData:
    """Windows of a task, made when they are asked for."""

    task: Task
    vocab_size: int
    fold: int
    """Which stream of held-out windows."""

    @property
    def fingerprint(self) -> str:
        """Digest of the task's settings, and of the code of a user's task."""
        settings = [self.task.model_dump(mode="json"), self.vocab_size]
        if is_users(type(self.task)):
            settings.append(source_digest(type(self.task)))
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def known_tokens(self) -> int:
        """All."""
        return self.vocab_size

    @property
    def n_folds(self) -> int:
        """The same for every task."""
        return N_FOLDS

    @property
    def tokenizer(self) -> None:
        """No text."""

    @property
    def document_token(self) -> None:
        """A task has no documents."""

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """Only answers are trained on."""
        return windows(self.task, seed, step * batch_size, batch_size, seq_len, self.vocab_size)

    def passes(self, n_windows: int, seq_len: int) -> Mapping[str, float]:
        """Its windows never come again."""
        return {}

    def held_out(self, seq_len: int, n_tokens: int | None, *, masked: bool) -> HeldOut:
        """A task has no documents to mask."""
        count = max((n_tokens or ALL_THERE_ARE) // seq_len, 1)
        found = windows(self.task, self.fold, 0, count, seq_len, self.vocab_size, "held_out")
        assert isinstance(found.scored, np.ndarray)
        return HeldOut(found.tokens, found.scored, bytes=None, documents=None)

    def beginnings(self, held_out: HeldOut) -> list[str]:
        """There are no documents."""
        return []

    def __str__(self) -> str:
        return self.task.describe()
