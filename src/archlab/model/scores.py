"""How a query and a key become a weight."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """How a query and a key become a weight."""

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    """0 outside training."""
    sinks_H: Tensor | None = None
    """Per head, the score of one more key that every query sees and that has no value; None without."""
