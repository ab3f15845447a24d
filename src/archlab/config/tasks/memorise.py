"""Memorization task: keys, each followed by its value, which is the same in all windows."""

from typing import Annotated, Literal

from pydantic import Field

from archlab.config.core.base import Seed
from archlab.config.tasks import Task, fewest_symbols


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
        return self.key_tokens, 1 + max(2 * fewest_symbols(self.facts, self.key_tokens), 3)

    def answers(self, vocab_size: int) -> int:
        """Return half of the number of tokens except the blank. The other half is used for keys."""
        return vocab_size // 2

    def answers_per_window(self, seq_len: int) -> float:
        """Return the number of facts that fit into a window."""
        return min(self.facts, (seq_len + 1) // (self.key_tokens + 1))

    def describe(self) -> str:
        return f"Memorise {self.facts} facts, the same in every window."
