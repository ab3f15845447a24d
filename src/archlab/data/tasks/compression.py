"""Compression task: a sequence of tokens, then positions, each followed by the token at that position."""

import numpy as np

from archlab.config.core.registry import implements
from archlab.config.tasks import BLANK
from archlab.config.tasks.compression import Compression
from archlab.data.tasks.dice import Dice

_END = 1


@implements(Compression)
def compression(task: Compression, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the mask of answers, both [windows, length]. Unused positions are blank tokens at the front."""
    n, n_answers = task.compressed, task.answers(vocab_size)
    text = vocab_size - n_answers + dice.below("text", n, n_answers)
    places = dice.order("places", n)

    tokens = np.full((dice.count, length), BLANK, dtype=np.int64)
    is_answer = np.zeros(tokens.shape, dtype=bool)
    end = length - 2 * n - 1
    tokens[:, end - n : end] = text
    tokens[:, end] = _END
    tokens[:, end + 1 :: 2] = 2 + places
    tokens[:, end + 2 :: 2] = np.take_along_axis(text, places, axis=1)
    is_answer[:, end + 2 :: 2] = True
    return tokens, is_answer
