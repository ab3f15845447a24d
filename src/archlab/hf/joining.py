"""Tensors put together, by steps of weight maps. torch is imported when weights are: a config is read without it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def concatenate(parts: "Iterable[Tensor]", dim: int = 0) -> "Tensor":
    """One after the other along `dim`."""
    import torch

    return torch.cat(list(parts), dim)


def stack(parts: "Iterable[Tensor]", dim: int = 0) -> "Tensor":
    """Along a new axis `dim`."""
    import torch

    return torch.stack(list(parts), dim)
