"""Distance between two tensors, and the distances that count as equal."""

import torch
from torch import Tensor

EXACT = 1e-9
"""Largest relative distance of two results that are computed in float64."""

FLOAT32 = 1e-5
"""Largest relative distance of two results if one is computed in float32 inside, as many norms are."""


def distance(x: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference, divided by the largest absolute value of `right`.

    NaN equals NaN. If only one of two elements is NaN, or if the shapes differ, the distance is infinite.
    """
    if x.shape != right.shape or not torch.equal(x.isnan(), right.isnan()):
        return float("inf")
    x, right = x.detach().nan_to_num().double(), right.detach().nan_to_num().double()
    size = right.abs().max().item() if right.numel() else 0.0
    difference = (x - right).abs().max().item() if right.numel() else 0.0
    return difference if size == 0 else difference / size
