"""Synthetic tasks, which test one capability each. Their tokens are generated from a seed, without files.

Within seconds, tasks show properties of small models that the loss on text cannot show (Poli 2024, arXiv 2403.17844;
Arora 2023, arXiv 2312.04927). An answer is a target that follows from the tokens before it. Only answers are scored.

Importing the package registers the tasks of all its modules.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.core.base import Kinded
from archlab.config.core.registry import Registered, Section, import_all

BLANK = 0
"""Token without a meaning. Tasks that need a separator (copy, compression, state tracking) use the next token as the
separator."""


class TaskOrText(Registered):
    """Base class of synthetic tasks, including no task."""

    section: ClassVar[Section] = "task"
    default_kind: ClassVar[str | None] = "none"


class NoTask(TaskOrText):
    """No task: the model is trained on text."""

    kind: Literal["none"] = "none"


class Task(Kinded, TaskOrText, ABC):
    """Base class of synthetic tasks. The tokens that can be answers are the last ids of the vocabulary."""

    default_kind: ClassVar[str | None] = None

    @property
    @abstractmethod
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len in tokens, vocab_size) for which the task can be generated."""

    @abstractmethod
    def answers(self, vocab_size: int) -> Annotated[int, Field(ge=1)]:
        """Return the number of different tokens that an answer can be."""

    def chance(self, vocab_size: int) -> float:
        """Return the accuracy, 0 to 1, of the best guess without reading the window. In most tasks, all answers are
        equally frequent everywhere in the window."""
        return 1 / self.answers(vocab_size)

    def answers_per_window(self, seq_len: int) -> float | None:
        """Return the mean number of answers in a window of `seq_len` tokens, for which training computes logits.

        None: unknown, and the price of training counts logits for all tokens.
        """
        return None

    @abstractmethod
    def describe(self) -> str:
        """Return a description of the task in one sentence, for reports."""


def fewest_symbols(n_words: int, length: int) -> int:
    """Return the smallest number of symbols from which `n_words` different words of `length` symbols can be made."""
    n_symbols = round(n_words ** (1 / length))
    return n_symbols + (n_symbols**length < n_words)


import_all(__name__, __path__)
