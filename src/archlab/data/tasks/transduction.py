"""Tasks of pairs: a source, a separator, and the target that follows from the source.

Shapes: N windows, I items of the longest source. An item is a symbol or, in the lexicon, a word.
"""

from functools import singledispatch

import numpy as np

from archlab.config.core.registry import implements
from archlab.config.tasks import BLANK
from archlab.config.tasks.transduction import SEPARATOR, Lexicon, Reverse, ShiftedCopy, Sort, Transduction
from archlab.data.tasks.dice import Dice
from archlab.data.tasks.digits import digits


@implements(Reverse, Sort, ShiftedCopy, Lexicon)
def transduction(task: Transduction, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the mask of answers, both [windows, length]. Unused positions are blank tokens at the end."""
    n_symbols, size = task.answers(vocab_size), task.word_tokens if isinstance(task, Lexicon) else 1
    items_NI = dice.below("items", task.longest, n_symbols**size)
    n_items_N = task.shortest + dice.below("lengths", 1, task.longest - task.shortest + 1)[:, 0]
    target_NI = _target(task, items_NI, n_items_N)

    tokens = np.full((dice.count, length), BLANK, dtype=np.int64)
    is_answer = np.zeros(tokens.shape, dtype=bool)
    n_source_N = n_items_N * size
    tokens[np.arange(dice.count), n_source_N] = SEPARATOR
    row, place = np.nonzero(np.arange(task.longest * size) < n_source_N[:, None])
    for begin, written_NI in ((0, items_NI), (n_source_N[row] + 1, target_NI)):
        symbols = digits(written_NI, n_symbols, size).reshape(dice.count, -1)
        tokens[row, begin + place] = vocab_size - n_symbols + symbols[row, place]
    is_answer[row, n_source_N[row] + 1 + place] = True
    return tokens, is_answer


@singledispatch
def _target(task: Transduction, items_NI: np.ndarray, n_items_N: np.ndarray) -> np.ndarray:
    """Return the items of the targets, [N, I]. Only the first `n_items_N` items of each target are valid."""
    raise TypeError(task.describe())  # each kind that `transduction` implements has a function below


@_target.register
def _reverse(task: Reverse, items_NI: np.ndarray, n_items_N: np.ndarray) -> np.ndarray:
    return _at(items_NI, n_items_N, -1 - np.arange(task.longest))


@_target.register
def _sort(task: Sort, items_NI: np.ndarray, n_items_N: np.ndarray) -> np.ndarray:
    is_item_NI = np.arange(task.longest) < n_items_N[:, None]
    return np.sort(np.where(is_item_NI, items_NI, np.iinfo(np.int64).max), axis=1)


@_target.register
def _shifted_copy(task: ShiftedCopy, items_NI: np.ndarray, n_items_N: np.ndarray) -> np.ndarray:
    return _at(items_NI, n_items_N, np.arange(task.longest) + task.shift)


@_target.register
def _lexicon(task: Lexicon, items_NI: np.ndarray, n_items_N: np.ndarray) -> np.ndarray:
    dictionary = Dice(task.seed, "train", 0, 1).order("dictionary", task.symbols**task.word_tokens)[0]
    place_I = np.arange(task.longest)
    other_NI = np.where(place_I ^ 1 < n_items_N[:, None], place_I ^ 1, place_I)
    return _at(dictionary[items_NI], n_items_N, other_NI)


def _at(items_NI: np.ndarray, n_items_N: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the items at these places, which are counted modulo the number of items."""
    return np.take_along_axis(items_NI, places % n_items_N[:, None], axis=1)
