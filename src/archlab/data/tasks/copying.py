"""Selective copying task: tokens among noise tokens, then the same tokens without the noise."""

import numpy as np

from archlab.config.core.registry import implements
from archlab.config.tasks.copying import SelectiveCopy
from archlab.data.tasks.dice import Dice

_COPY = 1


@implements(SelectiveCopy)
def selective_copy(task: SelectiveCopy, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the mask of answers, both [windows, length]."""
    text, n_answers = length - task.copied - 1, task.answers(vocab_size)
    copied = vocab_size - n_answers + dice.below("copied", task.copied, n_answers)
    places = np.sort(dice.subset("places", task.copied, text), axis=1)

    tokens = 2 + dice.below("noise", length, task.noise_vocab)
    np.put_along_axis(tokens, places, copied, axis=1)
    tokens[:, text] = _COPY
    tokens[:, text + 1 :] = copied
    is_answer = np.zeros(tokens.shape, dtype=bool)
    is_answer[:, text + 1 :] = True
    return tokens, is_answer
