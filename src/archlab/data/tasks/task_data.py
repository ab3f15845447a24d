"""Synthetic tasks as training data."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from archlab.config.core.registry import is_users, source_digest
from archlab.config.objective import DataForm
from archlab.config.tasks import Task
from archlab.config.tasks.transduction import Transduction
from archlab.data.reserved import SpecialIds, reserved_names
from archlab.data.tasks.windows import windows
from archlab.data.training_data import Windows
from archlab.errors import UserError

STREAMS = 1_000_000
"""Number of random streams from which studies take held-out windows. Each seed of a study uses its own stream."""

N_FOLDS = 2 * STREAMS
"""Total number of random streams of held-out windows. Each stream is a fold. The first STREAMS folds are test folds."""

DEFAULT_HELD_OUT_TOKENS = 65_536
"""Default number of held-out tokens. A task can generate any number of them."""


def form_of_task(task: Task) -> DataForm:
    """Return the form of a task's windows."""
    return "pairs" if isinstance(task, Transduction) else "task"


@dataclass(frozen=True)
class TaskData:
    """Windows of a task, generated on demand."""

    task: Task
    vocab_size: int
    fold: int
    """Index of the random stream from which held-out windows are generated."""
    reserve: tuple[str, ...] = ()
    """Special tokens at the end of the vocabulary, as in `data.reserve`. The task does not use their ids."""

    def __post_init__(self) -> None:
        """Raise UserError if the reserved tokens leave too few ids for the task."""
        least = self.task.smallest[1] + len(reserved_names(self.reserve))
        if self.reserve and self.vocab_size < least:
            allowed = f"{least} or more for this task with data.reserve = {list(self.reserve)}"
            raise UserError(f"model.vocab_size is {self.vocab_size}; allowed: {allowed}: {self.task.describe()}")

    @property
    def n_ids(self) -> int:
        """Number of token ids that the task may use. They are the first ids of the vocabulary."""
        return self.vocab_size - len(reserved_names(self.reserve))

    @property
    def fingerprint(self) -> str:
        """Hash of the task's settings, and of its code if the task is a plug-in."""
        settings = [self.task.model_dump(mode="json"), self.n_ids]
        if self.reserve:
            settings.append(list(self.reserve))
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
        return replace(SpecialIds.at_the_end(self.vocab_size, self.reserve), documents=())

    @property
    def form(self) -> DataForm:
        return form_of_task(self.task)

    @property
    def inexact(self) -> None:
        """None, because a task has no bytes."""

    def windows(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        return windows(self.task, seed, step * batch_size, batch_size, seq_len, self.n_ids)

    def passes(self, n_steps: int, batch_size: int, seq_len: int) -> Mapping[str, float]:
        return {}

    def held_out(self, seq_len: int, n_tokens: int | None) -> Windows:
        count = max((n_tokens or DEFAULT_HELD_OUT_TOKENS) // seq_len, 1)
        return windows(self.task, self.fold, 0, count, seq_len, self.n_ids, "held_out")

    def beginnings(self, windows: Windows) -> list[str]:
        return []

    def __str__(self) -> str:
        return self.task.describe()
