"""How scores become weights."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Softmax:
    """The softmax that makes weights of scores, and what comes before and after it."""

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    """0 outside training."""
    sinks_H: Tensor | None = None
    """Per head, the score of one more key that every query sees and that has no value; None without."""
