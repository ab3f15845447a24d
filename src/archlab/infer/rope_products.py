"""How alike RoPE leaves a query and an equal key over their distance, by the model's own rotation."""

from typing import NamedTuple

import torch

from archlab.config.components.position import Rope
from archlab.model.rotary import rotation

VECTORS = 256
PER_OCTAVE = 4
"""Distances from one to twice as far."""


class RopeProducts(NamedTuple):
    """Of one kind of layer."""

    kind: str
    """The first layer kind that rotates so."""
    distances: list[int]
    """In tokens, from 0."""
    products: list[float]
    """At each distance, the mean product of a query with a key that equals it, as a share of their product without a
    rotation: the mean cosine of the angles, dimensions that do not rotate counting 1."""


def rope_products(kind: str, position: Rope, width: int, length: int, seed: int) -> RopeProducts:
    """Of random vectors of `width` numbers in a text of `length` tokens. Random, so that no dimension is preferred: for
    independent queries and keys the mean is 0 at every distance (Barbero 2024)."""
    octaves = (length - 1).bit_length() if length > 1 else 0
    steps = {round(2 ** (i / PER_OCTAVE)) for i in range(octaves * PER_OCTAVE + 1)}
    distances = [0, *sorted(step for step in steps if step < length)]
    x_1NTC = torch.randn(1, VECTORS, 1, width, generator=torch.Generator().manual_seed(seed))
    positions_1T, lengths_11 = torch.tensor(distances)[None], torch.tensor([[length]])
    turned_1NTC = rotation(position, width, positions_1T, lengths_11, torch.float32).rotate(
        x_1NTC.expand(-1, -1, len(distances), -1)
    )
    products_T = (turned_1NTC * turned_1NTC[:, :, :1]).sum((0, 1, 3)) / x_1NTC.square().sum()
    return RopeProducts(kind, distances, [float(f"{product:.6g}") for product in products_T.tolist()])
