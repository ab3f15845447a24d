"""Recall tasks: pairs of a key and a value, then keys whose values are the answers."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from archlab.config.core.base import Length, Width
from archlab.config.tasks import Task, fewest_symbols


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
        n_key_tokens = fewest_symbols(self.pairs, self.shape.key)
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
