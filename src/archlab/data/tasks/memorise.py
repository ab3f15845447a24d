"""Memorization task: keys, each followed by its value. A key has the same value in all windows."""

import numpy as np

from archlab.config.core.registry import implements
from archlab.config.tasks import BLANK
from archlab.config.tasks.memorise import Memorise
from archlab.data.tasks.dice import Dice
from archlab.data.tasks.digits import digits


@implements(Memorise)
def memorise(task: Memorise, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the mask of answers, both [windows, length].

    A window has as many facts as fit. Unused positions are blank tokens at the front.
    """
    first_value, size = vocab_size - task.answers(vocab_size), task.key_tokens + 1
    n = min(task.facts, length // size)
    facts = dice.distinct("facts", n, task.facts)
    values = Dice(task.seed, "train", 0, 1).below("values of facts", task.facts, vocab_size - first_value)[0]

    tokens = np.full((dice.count, length), BLANK, dtype=np.int64)
    is_answer = np.zeros(tokens.shape, dtype=bool)
    keys = 1 + digits(facts, first_value - 1, task.key_tokens)
    pairs = np.concatenate((keys, first_value + values[facts][:, :, None]), axis=2)
    tokens[:, length - n * size :] = pairs.reshape(dice.count, -1)
    is_answer[:, length - n * size :] = np.arange(n * size) % size == task.key_tokens
    return tokens, is_answer
