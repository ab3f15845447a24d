"""Windows of a task: a pure function of the task, the seed and the window index.

Nothing is stored, so a run can resume at any step.
"""

from typing import Any

import numpy as np

from archlab.config.core.contract import breach, short
from archlab.config.core.registry import make
from archlab.config.objective import longest_side
from archlab.config.tasks import Task
from archlab.config.tasks.transduction import Transduction
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import Windows
from archlab.errors import UserError


def windows(
    task: Task, seed: int, first: int, count: int, seq_len: int, vocab_size: int, split: str = "train"
) -> Windows:
    """Return the windows `first` to `first + count` (exclusive) of a split.

    Training and held-out windows come from different random streams and are identical only by chance. Raise UserError
    if the task does not fit into `seq_len` or `vocab_size`.
    """
    check(task, seq_len, vocab_size)
    tokens, is_answer = make(task, Dice(seed, split, first, count), seq_len + 1, vocab_size, check=_check_windows)
    if not isinstance(task, Transduction):
        return Windows(tokens, is_answer[:, 1:])
    source_lengths = is_answer.argmax(1)
    return Windows.of_pairs(tokens, source_lengths, source_lengths + is_answer.sum(1))


def _check_windows(
    kind: type[Task], made: Any, task: Task, dice: Dice, length: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    if not (isinstance(made, tuple | list) and len(made) == 2):
        raise breach(kind, f"its function returned {short(made)}; allowed: two arrays, (tokens, is_answer)")
    for name, array, dtype in zip(("tokens", "is_answer"), made, (np.int64, np.bool_), strict=True):
        allowed = f"an array [{dice.count}, {length}] of {np.dtype(dtype)}"
        if not isinstance(array, np.ndarray):
            raise breach(kind, f"its function returned {short(array)} as {name}; allowed: {allowed}")
        if array.shape != (dice.count, length) or array.dtype != dtype:
            found = f"an array {list(array.shape)} of {array.dtype}"
            raise breach(kind, f"its function returned {found} as {name}; allowed: {allowed}")
    tokens, is_answer = made
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if outside.size:
        raise breach(kind, f"its function returned the token {outside[0]}; allowed: 0 to {vocab_size - 1}")
    if not is_answer[:, 1:].any(axis=1).all():
        raise breach(kind, "its function returned a window without an answer after its first token")
    if issubclass(kind, Transduction):
        _check_pairs(kind, is_answer)
    return tokens, is_answer


def _check_pairs(kind: type[Task], is_answer: np.ndarray) -> None:
    begin, n_answers, half = is_answer.argmax(1), is_answer.sum(1), longest_side(is_answer.shape[1] - 1)
    index = np.arange(is_answer.shape[1])
    is_target = (index >= begin[:, None]) & (index < (begin + n_answers)[:, None])
    if (is_answer != is_target).any() or (begin < 1).any():
        raise breach(kind, "its function returned answers that are not one target after a source")
    if max(begin.max(), n_answers.max()) > half:
        found = f"a source of {begin.max()} tokens and a target of {n_answers.max()}"
        raise breach(kind, f"its function returned {found}; allowed: up to {half} each, half of the window")


def check(task: Task, seq_len: int, vocab_size: int) -> None:
    """Raise UserError if the task does not fit into `seq_len` or `vocab_size`."""
    settings = {"train.seq_len": seq_len, "model.vocab_size": vocab_size}
    for (field, value), least in zip(settings.items(), task.smallest, strict=True):
        if value < least:
            raise UserError(f"{field} is {value}; allowed: {least} or more for this task: {task.describe()}")
