"""Copying task: tokens among noise, a separator, then the same tokens."""

from typing import Literal

from archlab.config.core.base import Length, Width
from archlab.config.tasks import Task


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
