"""Search for the known mistake that gives exactly the output of hand-written code."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor

from archlab.testing.closeness import EXACT, FLOAT32, distance
from archlab.testing.mistakes import MISTAKES
from archlab.testing.pair import Pair
from archlab.testing.planting import Mistake, Plant
from archlab.testing.reference import Reference

MOST_FOR_PAIRS = 200_000
"""Largest number of parameters of a part for which pairs of mistakes are tried, too. In a whole model, there would be
too many pairs."""

_MUCH_CLOSER = 0.05
"""A mistake explains a difference if it leaves at most this fraction of it."""


def mistakes_in(pair: Pair) -> tuple[Mistake, ...]:
    """Return the mistakes with which archlab's output equals that of the code: none, one, or two that occur
    together."""
    allowed = min(FLOAT32, _MUCH_CLOSER * pair.difference)
    found: tuple[Mistake, ...] = ()
    nearest = allowed
    acting = list[tuple[Mistake, Plant]]()
    for mistake, plant in ((known, form) for known in MISTAKES for form in known.plants):
        planted = _planted(pair, plant)
        if planted is None or distance(planted, pair.right) <= EXACT:
            continue
        acting.append((mistake, plant))
        left = distance(planted, pair.output)
        if left <= nearest and (not found or left < nearest):
            found, nearest = (mistake,), left
    if found or not tries_pairs(pair.reference):
        return found
    return next(_two_mistakes(pair, acting, allowed), ())


def tries_pairs(reference: Reference) -> bool:
    """Return whether pairs of mistakes are tried, too."""
    n_parameters = sum(parameter.numel() for parameter in reference.parameters())
    return reference.part != "model" and n_parameters <= MOST_FOR_PAIRS


def _two_mistakes(
    pair: Pair, acting: Sequence[tuple[Mistake, Plant]], allowed: float
) -> Iterator[tuple[Mistake, Mistake]]:
    for (first, plant), (second, other) in combinations(acting, 2):
        if first is not second:
            planted = _planted(pair, plant, other)
            if planted is not None and distance(planted, pair.output) <= allowed:
                yield first, second


def _planted(pair: Pair, *plants: Plant) -> Tensor | None:
    """Return archlab's output with planted mistakes, or None if they exclude each other or the config does not allow
    them, as for two swapped matrices of different shapes."""
    changed = pair.reference.copy()
    for plant in plants:
        plant(changed)
    try:
        with torch.no_grad():
            return changed(pair.x)
    except RuntimeError:
        return None
