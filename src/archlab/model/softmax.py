"""Settings of attention's softmax."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Softmax:
    """Settings of the softmax that turns attention scores into weights, and of the steps around it."""

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    """Dropout rate of the attention weights; 0 outside training."""
    sinks_H: Tensor | None = None
    """Sink of each head: the score of an additional key with value 0, which every query sees. None means no sinks."""
