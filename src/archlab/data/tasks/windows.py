"""The windows of a task: a pure function of task, seed and index, so that there is nothing to store or to resume."""

from archlab.config.core.registry import make
from archlab.config.tasks import Task
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import Windows
from archlab.errors import UserError


def windows(
    task: Task, seed: int, first: int, count: int, seq_len: int, vocab_size: int, split: str = "train"
) -> Windows:
    """Windows first to first + count of a split. UserError where the task does not fit into seq_len or vocab_size.

    Training and held-out windows come from different random streams; they are equal only by chance.
    """
    check(task, seq_len, vocab_size)
    tokens, is_answer = make(task, Dice(seed, split, first, count), seq_len + 1, vocab_size)
    return Windows(tokens, is_answer[:, 1:])


def check(task: Task, seq_len: int, vocab_size: int) -> None:
    """UserError unless the task fits."""
    found = {"train.seq_len": seq_len, "model.vocab_size": vocab_size}
    for (field, value), least in zip(found.items(), task.smallest, strict=True):
        if value < least:
            raise UserError(f"{field}: {value}; allowed: {least} or more for this task: {task.describe()}")
