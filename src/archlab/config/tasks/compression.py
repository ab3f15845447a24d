"""Compression task: random tokens, a separator, then their positions, each followed by the token there."""

from typing import Literal

from archlab.config.core.base import Length
from archlab.config.tasks import Task


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
