"""Windows of a task: a pure function of task, seed and index. Nothing is stored, and a run can resume anywhere."""

from archlab.config.core.registry import make
from archlab.config.tasks import Task
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import Windows
from archlab.errors import UserError


def windows(
    task: Task, seed: int, first: int, count: int, seq_len: int, vocab_size: int, split: str = "train"
) -> Windows:
    """Return the windows `first` to `first + count` of a split.

    Training and held-out windows come from different random streams and are equal only by chance.
    Raise UserError if the task does not fit into `seq_len` or `vocab_size`.
    """
    check(task, seq_len, vocab_size)
    tokens, is_answer = make(task, Dice(seed, split, first, count), seq_len + 1, vocab_size)
    return Windows(tokens, is_answer[:, 1:])


def check(task: Task, seq_len: int, vocab_size: int) -> None:
    """Raise UserError if the task does not fit into `seq_len` or `vocab_size`."""
    settings = {"train.seq_len": seq_len, "model.vocab_size": vocab_size}
    for (field, value), least in zip(settings.items(), task.smallest, strict=True):
        if value < least:
            raise UserError(f"{field} is {value}; allowed: {least} or more for this task: {task.describe()}")
