"""Recall task: pairs of a key and a value, then keys whose values are the answers.

Shapes: W windows, P pairs.
"""

import numpy as np

from archlab.config.core.registry import implements
from archlab.config.tasks import BLANK
from archlab.config.tasks.recall import AnyRecall
from archlab.data.tasks.dice import Dice
from archlab.data.tasks.digits import MOST_NUMBERS, digits


@implements(AnyRecall)
def recall(task: AnyRecall, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the answer mask, both [W, length]. Unused positions are blanks or noise, at the front."""
    shape, size = task.shape, task.shape.key + task.shape.value
    first_key, first_value = 1 + shape.noise_vocab, vocab_size - task.answers(vocab_size)
    n_keys = first_value - first_key
    keys = dice.distinct("keys", task.pairs, min(n_keys**shape.key, MOST_NUMBERS))
    values = dice.below("values", task.pairs * shape.value, vocab_size - first_value)
    pairs = np.concatenate(
        (first_key + digits(keys, n_keys, shape.key), first_value + values.reshape(dice.count, task.pairs, -1)), axis=2
    )  # [W, P, size]
    asked = dice.order("asked", task.pairs)[:, : task.asked]

    with_pairs, gap, with_queries = task.length
    tokens = _filler(dice, length, shape.noise_vocab)
    starts = length - with_queries - gap - with_pairs + _starts(dice, task.pairs, size, shape.noise)
    places = starts[:, :, None] + np.arange(size)
    np.put_along_axis(tokens, places.reshape(dice.count, -1), pairs.reshape(dice.count, -1), axis=1)
    tokens[:, length - with_queries :] = np.take_along_axis(pairs, asked[:, :, None], axis=1).reshape(dice.count, -1)

    is_answer = np.zeros(tokens.shape, dtype=bool)
    is_answer[:, length - with_queries :] = np.arange(with_queries) % size >= shape.key
    return tokens, is_answer


def _filler(dice: Dice, length: int, noise_vocab: int) -> np.ndarray:
    if noise_vocab:
        return 1 + dice.below("noise", length, noise_vocab)
    return np.full((dice.count, length), BLANK, dtype=np.int64)


def _starts(dice: Dice, pairs: int, size: int, noise: int) -> np.ndarray:
    """Return the start positions of the pairs as int64 [W, P].

    Noise tokens are placed at random before the pairs. There is no noise after the last pair, so its distance from the
    queries is exactly as requested.
    """
    units = np.full((dice.count, pairs), pairs - 1 + noise)  # a unit is a pair or a token of noise
    units[:, :-1] = np.sort(dice.subset("places", pairs - 1, pairs - 1 + noise), axis=1)
    return units + np.arange(pairs) * (size - 1)
