"""Copies of the features of a tensor, in a wider model."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from archlab.model.init import seed_of
from archlab.transplant.axes import Features
from archlab.transplant.weights import LazyTensor

_SPREAD = 0.5
"""Standard deviation of the parts into which a weight is split, divided by their mean."""


def with_copies(
    tensor: LazyTensor, axes: str, features: Mapping[str, Features], transformation: str, name: str, factor: float = 1.0
) -> LazyTensor:
    """Return the tensor with the copies of its features, multiplied by `factor`. `axes` is explained in axes.py.

    A weight that multiplies a feature is split among the copies of the feature: its parts add up to it. The parts are
    random and depend on `name`. `transformation` is the name of the transformation.
    """
    if axes.startswith("length "):
        length = math.sqrt(features[axes.removeprefix("length ")].times)
        return tensor if length == 1 else tensor.then(transformation, lambda x: x * length, tensor.shape)
    outputs, _, last = axes.partition(" < ")
    rows = [_features(axis, features) for axis in outputs.split()]
    summed = _features(last, features)[0] if last not in ("", ".") else Features(tensor.shape[-1])
    if factor == summed.times == 1 and all(part.times == 1 for parts in rows for part in parts):
        return tensor

    def copied(x: Tensor) -> Tensor:
        for axis, parts in enumerate(rows):
            x = _copied(x, axis, parts)
        if summed.times > 1:
            x = _copied(x.to(torch.promote_types(x.dtype, torch.float32)), x.ndim - 1, [summed])
            x = x * _parts_of_one(x, summed, name)
        return x * factor

    sizes = [sum(part.size * part.times for part in parts) or n for parts, n in zip(rows, tensor.shape, strict=False)]
    sizes += tensor.shape[len(rows) :]
    sizes[-1] *= summed.times
    return tensor.then(transformation, copied, sizes)


def _features(axis: str, features: Mapping[str, Features]) -> list[Features]:
    return [features[name] for name in axis.split("+") if name != "."]


def _copied(x: Tensor, axis: int, parts: Sequence[Features]) -> Tensor:
    if all(part.times == 1 for part in parts):
        return x
    pieces = x.split([part.size for part in parts], axis)
    copies = [
        piece.unflatten(axis, (-1, part.block)).repeat_interleave(part.times, axis).flatten(axis, axis + 1)
        for piece, part in zip(pieces, parts, strict=True)
    ]
    return torch.cat(copies, axis)


def _parts_of_one(x: Tensor, summed: Features, name: str) -> Tensor:
    """Return a factor for each element of `x`. The factors of the copies of one weight add up to 1."""
    drawn = torch.empty(x.shape, device="cpu").normal_(generator=torch.Generator().manual_seed(seed_of(name)))
    by_copy = drawn.to(x).unflatten(-1, (-1, summed.times, summed.block))
    return ((1 + _SPREAD * (by_copy - by_copy.mean(-2, keepdim=True))) / summed.times).flatten(-3)
