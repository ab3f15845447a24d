"""Synthetic tasks, which test one capability each. Their tokens are generated from a seed, without files.

Within seconds, tasks show properties of small models that the loss on text cannot show (Poli 2024, arXiv 2403.17844;
Arora 2023, arXiv 2312.04927). An answer is a target that follows from the tokens before it. Only answers are scored.

Importing the package registers the tasks of all its modules.
"""

from abc import ABC, abstractmethod
from math import factorial
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from archlab.config.core.base import Kinded, Length, Seed, Width
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


class PairShape(NamedTuple):
    """Number of tokens of each key and of each value, and the noise between the pairs."""

    key: int = 1
    value: int = 1
    noise: int = 0
    """Total number of noise tokens between the pairs of a window."""
    noise_vocab: int = 0
    """Number of different tokens that noise is drawn from."""


class AnyRecall(Task):
    """Base class of recall tasks. A window has pairs of a key and a value, blank tokens, then some of the keys again.
    Each repeated key is followed by its value, which is the answer.

    Keys differ within a window, and their values differ between windows. No key is asked for twice, because its first
    answer would be nearer than `distance`.

    A model that sees the values but not their keys can guess among the values that have not been answers yet. Its guess
    for query i is right with probability 1 / (pairs - i + 1). If all of 8 pairs are asked for, this is 34% on average.
    Only accuracy above this level shows recall.
    """

    pairs: Length = 8
    """Number of key-value pairs per window (Zoology: 4 to 64)."""
    queries: Length | None = None
    """Number of keys that are asked for per window, in random order. null: all keys, as in Zoology's multi-query
    recall."""
    distance: Length | None = None
    """Smallest number of tokens between a value and the position that must predict it. null: no blank tokens between
    pairs and queries.

    A layer with a window no larger than this distance does not see the value; n such layers together see n * (window -
    1) tokens back.
    """

    @model_validator(mode="after")
    def _possible(self) -> "AnyRecall":
        if self.asked > self.pairs:
            raise ValueError(
                f"queries: {self.queries}; allowed: at most {self.pairs} (pairs), because no key is asked twice"
            )
        if self._gap < 0:
            least = self.shape.key + self.shape.value - 1
            raise ValueError(
                f"distance: {self.distance}; allowed: at least {least}, because a pair has {least + 1} tokens"
            )
        return self

    @property
    def shape(self) -> PairShape:
        return PairShape()

    @property
    def asked(self) -> int:
        return self.pairs if self.queries is None else self.queries

    @property
    def length(self) -> tuple[int, int, int]:
        """Total number of tokens of the pairs with their noise, the gap, and the queries with their answers."""
        size = self.shape.key + self.shape.value
        return self.pairs * size + self.shape.noise, self._gap, self.asked * size

    @property
    def _gap(self) -> int:
        nearest = self.shape.key + self.shape.value - 1
        return 0 if self.distance is None else self.distance - nearest

    @property
    def distances(self) -> tuple[int, int]:
        """Smallest and largest number of tokens between a value and the position that must predict it."""
        size = self.shape.key + self.shape.value
        return self._gap + size - 1, sum(self.length) - size - 1

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). The vocabulary has enough key tokens for a different key in each pair, and
        at least two values."""
        n_key_tokens = round(self.pairs ** (1 / self.shape.key))
        n_key_tokens += n_key_tokens**self.shape.key < self.pairs
        return sum(self.length) - 1, 1 + self.shape.noise_vocab + max(2 * n_key_tokens, 3)

    def answers(self, vocab_size: int) -> int:
        """Return half of the number of tokens that are neither blank nor noise. The other half is used for keys
        (MAD)."""
        return (vocab_size - self.shape.noise_vocab) // 2

    def answers_per_window(self, seq_len: int) -> float:
        """Return the number of tokens of the values that are asked for."""
        return self.asked * self.shape.value

    def describe(self) -> str:
        least, most = self.distances
        far = f"{least}" if least == most else f"{least} to {most}"
        return f"Recall {self.asked} of {self.pairs} values by their keys, {far} tokens back{self._details()}."

    def _details(self) -> str:
        return ""


class Recall(AnyRecall):
    """Associative recall. With several queries, this is Zoology's multi-query recall (Arora 2023)."""

    kind: Literal["recall"] = "recall"


class FuzzyRecall(AnyRecall):
    """Recall in which keys and values have several tokens (fuzzy recall, MAD).

    MAD draws the length of each key and value at random, up to a maximum. Here all keys have the same length, and so do
    all values. It is therefore always clear where a key ends.
    """

    kind: Literal["fuzzy_recall"] = "fuzzy_recall"
    key_tokens: Annotated[int, Field(ge=1, le=16)] = 2
    """Number of tokens of each key (MAD: up to 3). Two keys may have some tokens in common, and often do in a small
    vocabulary."""
    value_tokens: Annotated[int, Field(ge=1, le=16)] = 2
    """Number of tokens of each value (MAD: up to 3). Each of these tokens is an answer."""

    @property
    def shape(self) -> PairShape:
        return PairShape(key=self.key_tokens, value=self.value_tokens)

    def _details(self) -> str:
        return f"; a key has {self.key_tokens} tokens, a value {self.value_tokens}"


class NoisyRecall(AnyRecall):
    """Recall with meaningless noise between the pairs (MAD). Noise tokens also replace the blank tokens."""

    kind: Literal["noisy_recall"] = "noisy_recall"
    noise: Length = 16
    """Number of noise tokens spread among the pairs of a window (MAD: 20% to 80% of the tokens)."""
    noise_vocab: Width = 16
    """Number of different tokens that noise is drawn from. These tokens have no other use (MAD: 16)."""

    @property
    def shape(self) -> PairShape:
        return PairShape(noise=self.noise, noise_vocab=self.noise_vocab)

    def _details(self) -> str:
        return f", among {self.noise} tokens of noise"


class SelectiveCopy(Task):
    """Copying of tokens out of noise: tokens among noise, a separator, then the same tokens in order (MAD; Gu & Dao
    2023).

    Noise fills the rest of the window.
    """

    kind: Literal["selective_copy"] = "selective_copy"
    copied: Length = 16
    """Number of tokens to copy per window (MAD: 16 to 96)."""
    noise_vocab: Width = 1
    """Number of different tokens that noise is drawn from. These tokens have no other use (MAD: 1)."""

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). At this size, the window has no noise, and there are two different tokens to
        copy."""
        return 2 * self.copied, 2 + self.noise_vocab + 2

    def answers(self, vocab_size: int) -> int:
        """Return the number of tokens except the blank, the separator and noise."""
        return vocab_size - 2 - self.noise_vocab

    def answers_per_window(self, seq_len: int) -> float:
        """Return the number of copied tokens."""
        return self.copied

    def describe(self) -> str:
        return f"Copy {self.copied} tokens in order from a window of noise."


class Compression(Task):
    """Recall by position: random tokens, a separator, then the positions of these tokens in random order, each followed
    by the token at that position.

    In MAD, a second network predicts each token from the separator's last hidden state and the token's position, so
    that one vector must hold all tokens. Next-token prediction has no such bottleneck: a query names a position, and
    attention can look there. With full attention, the task is therefore recall by position. It tests compression only
    if the state has a fixed size, as in a recurrent mixer.
    """

    kind: Literal["compression"] = "compression"
    compressed: Length = 16
    """Number of random tokens per window (MAD uses 32 or more)."""

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). The vocabulary has one token for each position, and two different tokens
        to recall."""
        return 3 * self.compressed, 2 + self.compressed + 2

    def answers(self, vocab_size: int) -> int:
        """Return the number of tokens except the blank, the separator and the positions."""
        return vocab_size - 2 - self.compressed

    def answers_per_window(self, seq_len: int) -> float:
        """Return the number of compressed tokens, each of which is asked for once."""
        return self.compressed

    def describe(self) -> str:
        return f"Remember {self.compressed} random tokens and return each one by its position."


class Memorise(Task):
    """Memorization of facts: each key has the same value in every window, so that the weights must store the facts
    (MAD's memorization).

    No key appears twice in a window, so that earlier tokens do not help. Held-out windows ask for the same facts.
    """

    kind: Literal["memorise"] = "memorise"
    facts: Annotated[int, Field(ge=1, le=10**8)] = 64
    """Number of facts, which are pairs of a key and a value, in the whole training run (MAD: 127)."""
    key_tokens: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of tokens of each key (MAD: 1). With several tokens per key, a small vocabulary has keys for many
    facts."""
    seed: Seed = 0
    """Random seed of the values. It is separate from train.seed, so that all seeds of a study learn the same facts."""

    @property
    def smallest(self) -> tuple[int, int]:
        """Smallest (seq_len, vocab_size). The window has room for one fact, and the vocabulary for the keys of all
        facts."""
        n_key_tokens = round(self.facts ** (1 / self.key_tokens))
        n_key_tokens += n_key_tokens**self.key_tokens < self.facts
        return self.key_tokens, 1 + max(2 * n_key_tokens, 3)

    def answers(self, vocab_size: int) -> int:
        """Return half of the number of tokens except the blank. The other half is used for keys."""
        return vocab_size // 2

    def answers_per_window(self, seq_len: int) -> float:
        """Return the number of facts that fit into a window."""
        return min(self.facts, (seq_len + 1) // (self.key_tokens + 1))

    def describe(self) -> str:
        return f"Memorise {self.facts} facts, the same in every window."


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


import_all(__name__, __path__)
