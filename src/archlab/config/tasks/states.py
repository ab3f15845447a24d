"""State-tracking task: elements of a permutation group, interrupted by questions about their product so far."""

from math import factorial
from typing import Literal

from archlab.config.core.base import Length
from archlab.config.tasks import Task

_OBJECTS = {"parity": 2, "s3": 3, "s4": 4, "s5": 5}


class StateTracking(Task):
    """Products in a group of permutations. A window has some group elements, a separator and the product of all
    elements so far, then more elements, and so on.

    Products are asked for rarely, because with a product after every element the task would be a table lookup.
    """

    kind: Literal["state_tracking"] = "state_tracking"
    group: Literal["parity", "s3", "s4", "s5"] = "s3"
    """Group of all permutations of 2 (parity), 3, 4 or 5 objects. Unless TC0 = NC1, no transformer or Mamba of fixed
    depth can track s5 over sequences of any length (Merrill 2024, arXiv 2404.08819). Even for parity, a linear
    recurrence needs negative eigenvalues (Grazzi 2024, arXiv 2411.12537)."""
    steps: Length = 16
    """Largest number of group elements between two answers. Each number is drawn at random, from 1 to this value. Small
    values make the task easier to learn."""

    @property
    def objects(self) -> int:
        return _OBJECTS[self.group]

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). The window has room for the longest run of elements. The vocabulary has
        two tokens per element, one as a factor and one as a product."""
        return self.steps + 1, 2 + 2 * factorial(self.objects)

    def answers(self, vocab_size: int) -> int:
        """Return the number of elements of the group, whatever the vocabulary."""
        return factorial(self.objects)

    def answers_per_window(self, seq_len: int) -> float:
        """Return the expected number of answers: the renewals of a process whose gaps are drawn uniformly."""
        means = list[float]()  # by the number of tokens, of which an answer needs 1 to `steps` elements and two more
        for n_tokens in range(seq_len + 2):
            rest = range(n_tokens - 2 - self.steps, n_tokens - 2)
            means.append(sum(1 + means[n] for n in rest if n >= 0) / self.steps)
        return means[-1]

    def describe(self) -> str:
        tracked = "the parity of bits" if self.group == "parity" else f"a permutation of {self.objects} objects"
        return f"Track {tracked} over up to {self.steps} steps."
