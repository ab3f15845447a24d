"""Synthetic tasks: a capability asked for by itself, in tokens made from a seed, without files.

They show in seconds what the loss on text cannot show in a small model (Poli 2024, arXiv 2403.17844; Arora 2023,
arXiv 2312.04927). A target that follows from what is before it is an answer; only answers are scored.
"""

from abc import ABC, abstractmethod
from math import factorial
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from archlab.config.core.base import Kinded, Length, Seed, Width
from archlab.config.core.registry import Registered, Section

BLANK = 0
"""The token that says nothing; where a task needs one more sign (copy, ask), it is the token after this one."""


class TaskOrText(Registered):
    """A synthetic task, or text."""

    section: ClassVar[Section] = "task"
    default_kind: ClassVar[str | None] = "none"


class NoTask(TaskOrText):
    """No task: the model is trained on text."""

    kind: Literal["none"] = "none"


class Task(Kinded, TaskOrText, ABC):
    """A synthetic task. The last ids of the vocabulary are the answers."""

    default_kind: ClassVar[str | None] = None

    @property
    @abstractmethod
    def smallest(self) -> tuple[int, int]:
        """(seq_len in tokens, vocab_size): the task fits into no smaller ones."""

    @abstractmethod
    def answers(self, vocab_size: int) -> Annotated[int, Field(ge=1)]:
        """How many tokens an answer may be."""

    def chance(self, vocab_size: int) -> float:
        """Accuracy, 0 to 1, of a guess that knows nothing of the window: all answers are equally frequent."""
        return 1 / self.answers(vocab_size)

    @abstractmethod
    def describe(self) -> str:
        """One sentence for reports."""


class PairShape(NamedTuple):
    """What a key with its value is made of, in tokens."""

    key: int = 1
    value: int = 1
    noise: int = 0
    """Between the pairs of a window."""
    noise_vocab: int = 0
    """Different tokens of noise."""


class AnyRecall(Task):
    """Keys with their values, blank tokens, then keys again, each followed by its value: the answer.

    Keys differ within a window and mean nothing beyond it. No key is asked for twice, since its first answer would
    stand nearer than the distance. So a model that sees the values but not whose they are can guess among those not yet
    given: query i is right by one in pairs - i + 1, with 8 of 8 pairs 34% in all. Recall is what is beyond that.
    """

    pairs: Length = 8
    """Keys with a value, per window (Zoology: 4 to 64)."""
    queries: Length | None = None
    """Keys asked for, per window, in random order (Zoology's multi-query recall: every key). null: all pairs."""
    distance: Length | None = None
    """Tokens from a value to the place that must predict it, at least (`distances` says the most). A layer whose window
    has no more tokens than this does not see it; n layers together see n * (window - 1) tokens back. null: no blanks
    between pairs and queries."""

    @model_validator(mode="after")
    def _possible(self) -> "AnyRecall":
        if self.asked > self.pairs:
            raise ValueError(f"queries: {self.queries}; allowed: up to pairs, {self.pairs}, for none is asked twice")
        if self._gap < 0:
            least = self.shape.key + self.shape.value - 1
            raise ValueError(f"distance: {self.distance}; allowed: {least} or more, for a pair has {least + 1} tokens")
        return self

    @property
    def shape(self) -> PairShape:
        """What a pair is made of."""
        return PairShape()

    @property
    def asked(self) -> int:
        """Queries per window."""
        return self.pairs if self.queries is None else self.queries

    @property
    def length(self) -> tuple[int, int, int]:
        """Tokens of (pairs and noise, the gap after them, queries with their answers)."""
        size = self.shape.key + self.shape.value
        return self.pairs * size + self.shape.noise, self._gap, self.asked * size

    @property
    def _gap(self) -> int:
        nearest = self.shape.key + self.shape.value - 1
        return 0 if self.distance is None else self.distance - nearest

    @property
    def distances(self) -> tuple[int, int]:
        """(least, most) tokens from a value to the place that must predict it."""
        size = self.shape.key + self.shape.value
        return self._gap + size - 1, sum(self.length) - size - 1

    @property
    def smallest(self) -> tuple[int, int]:
        """The keys are as many tokens as give each pair a key of its own; the values are at least two."""
        each = round(self.pairs ** (1 / self.shape.key))
        each += each**self.shape.key < self.pairs
        return sum(self.length) - 1, 1 + self.shape.noise_vocab + max(2 * each, 3)

    def answers(self, vocab_size: int) -> int:
        """Half of what is neither blank nor noise; the other half makes the keys (MAD)."""
        return (vocab_size - self.shape.noise_vocab) // 2

    def describe(self) -> str:
        """With the range of distances."""
        least, most = self.distances
        far = f"{least}" if least == most else f"{least} to {most}"
        return f"Recall {self.asked} of {self.pairs} values by their keys, {far} tokens back{self._of_what()}."

    def _of_what(self) -> str:
        return ""


class Recall(AnyRecall):
    """Associative recall; with several queries it is Zoology's multi-query recall (Arora 2023)."""

    kind: Literal["recall"] = "recall"


class FuzzyRecall(AnyRecall):
    """Recall where a key is several tokens, and so is a value (MAD).

    MAD draws their numbers, up to these; here all have as many, so that it is always known where a key ends.
    """

    kind: Literal["fuzzy_recall"] = "fuzzy_recall"
    key_tokens: Annotated[int, Field(ge=1, le=16)] = 2
    """Tokens of a key (MAD: up to 3). Two keys may share some of them, and do in a small vocabulary."""
    value_tokens: Annotated[int, Field(ge=1, le=16)] = 2
    """Tokens of a value (MAD: up to 3); each of them is an answer."""

    @property
    def shape(self) -> PairShape:
        """Several tokens each."""
        return PairShape(key=self.key_tokens, value=self.value_tokens)

    def _of_what(self) -> str:
        return f"; a key has {self.key_tokens} tokens, a value {self.value_tokens}"


class NoisyRecall(AnyRecall):
    """Recall with noise between the pairs, which stands for nothing (MAD); noise also takes the place of blanks."""

    kind: Literal["noisy_recall"] = "noisy_recall"
    noise: Length = 16
    """Tokens of noise dealt among the pairs of a window (MAD: 20% to 80% of the tokens)."""
    noise_vocab: Width = 16
    """Different tokens of noise; they are nothing else (MAD: 16)."""

    @property
    def shape(self) -> PairShape:
        """With noise."""
        return PairShape(noise=self.noise, noise_vocab=self.noise_vocab)

    def _of_what(self) -> str:
        return f", among {self.noise} tokens of noise"


class SelectiveCopy(Task):
    """Tokens among noise, a sign, then these tokens in their order without the noise (MAD; Gu & Dao 2023).

    Noise takes all the room that the window has.
    """

    kind: Literal["selective_copy"] = "selective_copy"
    copied: Length = 16
    """Tokens to copy, per window (MAD: 16 to 96)."""
    noise_vocab: Width = 1
    """Different tokens of noise; they are nothing else (MAD: 1)."""

    @property
    def smallest(self) -> tuple[int, int]:
        """Without any noise, which is plain copying; two tokens to choose from."""
        return 2 * self.copied, 2 + self.noise_vocab + 2

    def answers(self, vocab_size: int) -> int:
        """All but the blank, the sign and noise."""
        return vocab_size - 2 - self.noise_vocab

    def describe(self) -> str:
        """What is copied, and out of what."""
        return f"Copy {self.copied} tokens in their order out of noise."


class Compression(Task):
    """Random tokens, a sign, then the numbers of their places in random order, each followed by the token there.

    In MAD a second network reads every token out of the sign's last hidden state and the number of its place, so that
    one vector must hold them all. Next-token prediction has no such bottleneck: here a token asks for the place, and
    attention may look there. So with full attention this is recall by place; only where the state has a fixed size, as
    in a recurrent mixer, does it ask for compression.
    """

    kind: Literal["compression"] = "compression"
    compressed: Length = 16
    """Random tokens, per window (MAD: 32 and more)."""

    @property
    def smallest(self) -> tuple[int, int]:
        """A token for each place, and two to choose from."""
        return 3 * self.compressed, 2 + self.compressed + 2

    def answers(self, vocab_size: int) -> int:
        """All but the blank, the sign and the places."""
        return vocab_size - 2 - self.compressed

    def describe(self) -> str:
        """How many are held."""
        return f"Hold {self.compressed} random tokens and give each one back by the number of its place."


class Memorise(Task):
    """Facts: keys that have the same value in every window, so that the weights must hold them (MAD's memorization).

    No key stands twice in a window, so nothing can be read off what is before. Held-out windows ask for the same facts.
    """

    kind: Literal["memorise"] = "memorise"
    facts: Annotated[int, Field(ge=1, le=10**8)] = 64
    """Keys with a value, in the whole training (MAD: 127)."""
    key_tokens: Annotated[int, Field(ge=1, le=16)] = 1
    """Tokens of a key (MAD: 1); with more of them a small vocabulary has keys for many facts."""
    seed: Seed = 0
    """Draws the values; other than train.seed, so that all seeds of a study learn the same facts."""

    @property
    def smallest(self) -> tuple[int, int]:
        """Room for one fact."""
        each = round(self.facts ** (1 / self.key_tokens))
        each += each**self.key_tokens < self.facts
        return self.key_tokens, 1 + max(2 * each, 3)

    def answers(self, vocab_size: int) -> int:
        """Half of what is not blank; the other half makes the keys."""
        return vocab_size // 2

    def describe(self) -> str:
        """How many facts."""
        return f"Memorise {self.facts} facts, the same in every window."


_OBJECTS = {"parity": 2, "s3": 3, "s4": 4, "s5": 5}


class StateTracking(Task):
    """Words over a group of permutations: elements one after the other, a sign, then their product, and on from there.

    Products are seldom asked for, since one that stands before the next step makes it a look at a table.
    """

    kind: Literal["state_tracking"] = "state_tracking"
    group: Literal["parity", "s3", "s4", "s5"] = "s3"
    """All orders of 2 (parity), 3, 4 or 5 objects. Unless TC0 = NC1, no transformer or Mamba of fixed depth follows s5
    through words of any length (Merrill 2024, arXiv 2404.08819); a linear recurrence needs negative eigenvalues even
    for parity (Grazzi 2024, arXiv 2411.12537)."""
    steps: Length = 16
    """Elements between two answers, drawn from 1 to this; short ones make it learnable, long ones hard."""

    @property
    def objects(self) -> int:
        """How many are permuted."""
        return _OBJECTS[self.group]

    @property
    def smallest(self) -> tuple[int, int]:
        """Room for the longest word; a token for each element, and for each as a product."""
        return self.steps + 1, 2 + 2 * factorial(self.objects)

    def answers(self, vocab_size: int) -> int:
        """The elements of the group, however large the vocabulary is."""
        return factorial(self.objects)

    def describe(self) -> str:
        """The group and the length of its words."""
        what = "the parity of bits" if self.group == "parity" else f"a permutation of {self.objects} objects"
        return f"Track {what} over up to {self.steps} steps."
