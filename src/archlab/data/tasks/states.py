"""State-tracking task: elements of a permutation group, interrupted by questions about their product so far."""

from functools import cache
from itertools import permutations

import numpy as np

from archlab.config.core.registry import implements
from archlab.config.tasks.states import StateTracking
from archlab.data.tasks.dice import Dice

_ASK = 1


@implements(StateTracking)
def state_tracking(task: StateTracking, dice: Dice, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the mask of answers, both [windows, length].

    The state is the product of all elements since the beginning of the window. It is not reset after an answer. Element
    i of the group is written as token 2 + i. An answer is the state, written as one of the last tokens of the
    vocabulary.
    """
    table, first_state = _products(task.objects), vocab_size - task.answers(vocab_size)
    lengths = 1 + dice.below("lengths", length // 3 + 1, task.steps)
    ends = np.cumsum(lengths + 2, axis=1) - 1  # elements, the question token, the answer
    is_answer = np.zeros((dice.count, length + 1), dtype=bool)
    np.put_along_axis(is_answer, np.minimum(ends, length), True, axis=1)  # ends beyond the window are moved to its end
    is_answer = is_answer[:, :length]
    is_question = np.zeros_like(is_answer)
    is_question[:, :-1] = is_answer[:, 1:]

    elements = dice.below("elements", length, len(table))
    elements[is_answer | is_question] = 0  # the identity
    states = np.empty_like(elements)
    state = np.zeros(dice.count, dtype=np.int64)
    for i in range(length):
        states[:, i] = state = table[state, elements[:, i]]
    tokens = np.where(is_answer, first_state + states, np.where(is_question, _ASK, 2 + elements))
    return tokens, is_answer


@cache
def _products(objects: int) -> np.ndarray:
    elements = list(permutations(range(objects)))
    number = {element: i for i, element in enumerate(elements)}
    return np.array([[number[tuple(first[i] for i in then)] for then in elements] for first in elements])
