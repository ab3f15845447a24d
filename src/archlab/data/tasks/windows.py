"""The windows of a task: a pure function of task, seed and index, so that there is nothing to store or to resume."""

import numpy as np

from archlab.config.tasks import AnyRecall, AnyTask, Compression, Memorise, SelectiveCopy, StateTracking
from archlab.data.tasks.compression import compression
from archlab.data.tasks.copying import selective_copy
from archlab.data.tasks.dice import Dice
from archlab.data.tasks.memorise import memorise
from archlab.data.tasks.recall import recall
from archlab.data.tasks.states import state_tracking
from archlab.data.training_data import Windows
from archlab.errors import UserError


def windows(
    task: AnyTask, seed: int, first: int, count: int, seq_len: int, vocab_size: int, split: str = "train"
) -> Windows:
    """Windows first to first + count of a split. UserError where the task does not fit into seq_len or vocab_size.

    Training and held-out windows come from different random streams; they are equal only by chance.
    """
    check(task, seq_len, vocab_size)
    tokens, is_answer = _make(task, Dice(seed, split, first, count), seq_len + 1, vocab_size)
    return Windows(tokens, is_answer[:, 1:])


def check(task: AnyTask, seq_len: int, vocab_size: int) -> None:
    """UserError unless the task fits."""
    found = {"train.seq_len": seq_len, "model.vocab_size": vocab_size}
    for (field, value), least in zip(found.items(), task.smallest, strict=True):
        if value < least:
            raise UserError(f"{field}: {value}; allowed: {least} or more for this task: {task.describe()}")


def _make(task: AnyTask, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    match task:
        case AnyRecall():
            return recall(task, dice, length, vocab_size)
        case SelectiveCopy():
            return selective_copy(task, dice, length, vocab_size)
        case Compression():
            return compression(task, dice, length, vocab_size)
        case Memorise():
            return memorise(task, dice, length, vocab_size)
        case StateTracking():
            return state_tracking(task, dice, length, vocab_size)
    raise TypeError(type(task).__name__)
