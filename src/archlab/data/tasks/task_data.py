"""Synthetic tasks as training data."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from archlab.config.core.registry import is_users, source_digest
from archlab.config.tasks import Task
from archlab.config.tasks.transduction import Transduction
from archlab.data.reserved import SpecialIds
from archlab.data.tasks.windows import windows
from archlab.data.training_data import Windows

STREAMS = 1_000_000
"""Number of random streams from which studies take held-out windows. Each seed of a study uses its own stream."""

N_FOLDS = 2 * STREAMS
"""Total number of random streams of held-out windows. Each stream is a fold. The first STREAMS folds are test folds."""

DEFAULT_HELD_OUT_TOKENS = 65_536
"""Default number of held-out tokens. A task can generate any number of them."""


@dataclass(frozen=True)
class TaskData:
    """Windows of a task, generated on demand."""

    task: Task
    vocab_size: int
    fold: int
    """Index of the random stream from which held-out windows are generated."""

    @property
    def fingerprint(self) -> str:
        """Hash of the task's settings, and of its code if the task is a plug-in."""
        settings = [self.task.model_dump(mode="json"), self.vocab_size]
        if is_users(type(self.task)):
            settings.append(source_digest(type(self.task)))
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def n_folds(self) -> int:
        return N_FOLDS

    @property
    def tokenizer(self) -> None: ...

    @property
    def special(self) -> SpecialIds:
        return SpecialIds(self.vocab_size)

    @property
    def has_pairs(self) -> bool:
        return isinstance(self.task, Transduction)

    def windows(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        return windows(self.task, seed, step * batch_size, batch_size, seq_len, self.vocab_size)

    def passes(self, n_windows: int, seq_len: int) -> Mapping[str, float]:
        return {}

    def held_out(self, seq_len: int, n_tokens: int | None) -> Windows:
        count = max((n_tokens or DEFAULT_HELD_OUT_TOKENS) // seq_len, 1)
        return windows(self.task, self.fold, 0, count, seq_len, self.vocab_size, "held_out")

    def beginnings(self, windows: Windows) -> list[str]:
        return []

    def __str__(self) -> str:
        return self.task.describe()
