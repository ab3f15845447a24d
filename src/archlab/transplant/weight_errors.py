"""Errors of the weights that a transformation computes: how far they are from the trained ones."""

import math
from collections.abc import Iterable

from torch import Tensor

from archlab.transplant.weights import Errors

_ROWS = 4096
"""Number of rows that are compared at a time, so that a large matrix needs no copy in float64."""


def relative_error(before: Tensor, after: Tensor) -> float:
    """Return the relative Frobenius error |after - before| / |before|. It is 0 if both are 0."""
    squares, whole = 0.0, 0.0
    for old, new in zip(before.split(_ROWS), after.split(_ROWS), strict=True):
        squares += (new.double() - old.double()).square().sum().item()
        whole += old.double().square().sum().item()
    return math.sqrt(squares / whole) if whole else math.inf if squares else 0.0


def largest(of_layers: Iterable[Errors]) -> Errors:
    """Return the largest error of each name over several layers."""
    errors = dict[str, float]()
    for layer in of_layers:
        errors |= {name: max(error, errors.get(name, 0.0)) for name, error in layer.items()}
    return errors
