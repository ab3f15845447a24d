"""Synthetic tasks of pairs: a model reads a source text, and writes the target text that follows from it."""

from abc import ABC
from typing import Annotated, Literal

from pydantic import Field, model_validator

from archlab.config.core.base import Length, Seed
from archlab.config.tasks import Task

SEPARATOR = 1
"""Token that ends a source."""

MOST_WORDS = 10**6
"""Largest number of words of a dictionary."""


class Transduction(Task, ABC):
    """Base class of tasks of pairs. A window has a source, a separator and a target, and then blank tokens. The answers
    are the tokens of the target.

    The number of symbols of a source is drawn uniformly for each window, from `shortest` to `longest`. Each symbol is
    drawn uniformly from the tokens that can be answers. A target has as many symbols as its source, so it needs no end
    token.
    """

    shortest: Length = 4
    """Smallest number of symbols of a source."""
    longest: Length = 16
    """Largest number of symbols of a source. A window of seq_len tokens has room for seq_len / 2 - 1 symbols."""

    @model_validator(mode="after")
    def _has_lengths(self) -> "Transduction":
        if self.shortest > self.longest:
            raise ValueError(f"shortest: {self.shortest}; allowed: at most {self.longest} (longest)")
        return self

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). Half of the window has room for the longest source with its separator. The
        vocabulary has two different symbols."""
        return 2 * (self.longest + 1), 4

    def answers(self, vocab_size: int) -> int:
        """Return the number of tokens except the blank and the separator."""
        return vocab_size - 2

    def answers_per_window(self, seq_len: int) -> float:
        """Return the mean number of items of a target."""
        return (self.shortest + self.longest) / 2

    @property
    def _lengths(self) -> str:
        return f"{self.longest}" if self.shortest == self.longest else f"{self.shortest} to {self.longest}"


class Reverse(Transduction):
    """Reversal: the target is the source in reverse order."""

    kind: Literal["reverse"] = "reverse"

    def describe(self) -> str:
        return f"Reverse {self._lengths} symbols."


class Sort(Transduction):
    """Sorting: the target has the symbols of the source in the order of their token ids. A symbol that occurs several
    times in the source occurs as often in the target."""

    kind: Literal["sort"] = "sort"

    def chance(self, vocab_size: int) -> float:
        """Return the accuracy, 0 to 1, of the best guess without reading the symbols. The guess knows the number of
        symbols and the place of the answer in the target: a sorted target begins with small symbols."""
        import numpy as np

        at_most_S = np.arange(1, self.answers(vocab_size) + 1) / self.answers(vocab_size)
        counts_KS = np.ones((1, len(at_most_S)))  # chance that K of the symbols so far are at most S
        right, n_answers = 0.0, 0
        for n in range(1, self.longest + 1):
            counts_KS = np.pad(counts_KS * (1 - at_most_S), ((0, 1), (0, 0))) + np.pad(
                counts_KS * at_most_S, ((1, 0), (0, 0))
            )
            if n >= self.shortest:
                place_at_most_KS = counts_KS[::-1].cumsum(0)[:-1]  # the K-th largest place is at most S
                right += np.diff(place_at_most_KS, prepend=0.0, axis=1).max(1).sum()
                n_answers += n
        return float(right / n_answers)

    def describe(self) -> str:
        return f"Sort {self._lengths} symbols."


class ShiftedCopy(Transduction):
    """Copying with a cyclic shift: symbol i of the target is symbol i + `shift` of the source. Places are counted
    modulo the number of symbols, so a target begins with the symbol at place `shift` and ends with the one before
    it."""

    kind: Literal["shifted_copy"] = "shifted_copy"
    shift: Annotated[int, Field(ge=-(10**6), le=10**6)] = 1
    """Number of places by which the source is shifted. 0: plain copy. A negative number shifts the other way: with -1,
    the target begins with the last symbol of the source."""

    def describe(self) -> str:
        return f"Copy {self._lengths} symbols, with a cyclic shift of {self.shift}."


class Lexicon(Transduction):
    """Translation with a dictionary: each word is translated, and neighboring words swap places in pairs.

    A source consists of words, which have `word_tokens` symbols each. Every sequence of `word_tokens` symbols is a
    word. The dictionary is a random permutation of all words, the same in every window. Words 1 and 2 of the source
    become words 2 and 1 of the target, words 3 and 4 become words 4 and 3, and so on. If the number of words is odd,
    the last word keeps its place. The weights must store the dictionary, and no symbol can be translated alone.
    """

    kind: Literal["lexicon"] = "lexicon"
    shortest: Length = 2
    """Smallest number of words of a source."""
    longest: Length = 8
    """Largest number of words of a source. A window of seq_len tokens has room for seq_len / 2 - 1 symbols."""
    symbols: Annotated[int, Field(ge=2, le=MOST_WORDS)] = 8
    """Number of different symbols. The dictionary has symbols ** word_tokens words."""
    word_tokens: Annotated[int, Field(ge=1, le=16)] = 2
    """Number of symbols of each word."""
    seed: Seed = 0
    """Random seed of the dictionary. It is separate from train.seed, so that all seeds of a study learn the same
    dictionary."""

    @model_validator(mode="after")
    def _has_a_dictionary(self) -> "Lexicon":
        if self.symbols**self.word_tokens > MOST_WORDS:
            found = f"{self.symbols} ** {self.word_tokens} (symbols ** word_tokens) words in the dictionary"
            raise ValueError(f"{found}; allowed: at most {MOST_WORDS:,}")
        return self

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). Half of the window has room for the longest source with its separator. The
        vocabulary has all symbols."""
        return 2 * (self.longest * self.word_tokens + 1), 2 + self.symbols

    def answers(self, vocab_size: int) -> int:
        """Return the number of symbols. It does not depend on the vocabulary."""
        return self.symbols

    def answers_per_window(self, seq_len: int) -> float:
        """Return the mean number of symbols of a target."""
        return super().answers_per_window(seq_len) * self.word_tokens

    def describe(self) -> str:
        return f"Translate {self._lengths} words of {self.word_tokens} symbols, and swap neighbors."
