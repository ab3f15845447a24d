"""Rotary position embedding (Su 2021): queries and keys rotate by an angle proportional to their position."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archlab.config.components.position import Position, Rope
from archlab.config.core.contract import breach
from archlab.config.core.registry import implements
from archlab.model.arithmetic import wide
from archlab.model.contract import check_arguments, check_tensor, like_input
from archlab.model.rope_scaling import frequencies


@dataclass(frozen=True)
class Rotation:
    """Rotation of queries and keys: cos and sin of the angles at each position, [B or 1, 1, T, R].

    R is the number of rotated dimensions. The values are in at least float32. The angle of a pair of dimensions occurs
    twice, once for each dimension. sin is negated for the first dimension.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    is_partial: bool

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs of dimensions: [B, H, T, head_dim] -> [B, H, T, head_dim]."""
        rotating = self.cos.shape[-1]
        own = (x[..., :rotating] if self.is_partial else x).to(self.cos.dtype)
        other = own.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if self.interleaved else own.roll(rotating // 2, -1)
        rotated = (own * self.cos + other * self.sin).to(x.dtype)
        return torch.cat((rotated, x[..., rotating:]), dim=-1) if self.is_partial else rotated


@implements(Rope)
def rotation(config: Rope, width: int, positions_BT: Tensor, lengths_BT: Tensor, dtype: torch.dtype) -> Rotation:
    """Return the rotation of vectors with `width` dimensions at the given positions.

    `lengths_BT` holds, for each position, the length of its sequence, on which some scalings of RoPE depend. Angles are
    computed in float32, or in `dtype` if `dtype` is wider.
    """
    rotating = width if config.fraction == 1 else int(width * config.fraction)
    pairs = torch.arange(rotating // 2, device=positions_BT.device, dtype=wide(dtype))
    per_token, amplitude = frequencies(config, rotating, lengths_BT[..., None], pairs)
    angles = (positions_BT[..., None].to(wide(dtype)) * per_token)[:, None]
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    interleaved = config.pairing == "interleaved"
    return Rotation(
        _of_both(cos, cos, interleaved), _of_both(-sin, sin, interleaved), interleaved, is_partial=rotating < width
    )


class CheckedRotation:
    """Rotation that a plug-in's position kind has created, with a check of the tensors that it returns."""

    def __init__(self, kind: type[Position], rotation: Any) -> None:
        self._kind, self._rotation = kind, rotation

    def rotate(self, x: Tensor) -> Tensor:
        rotated = self._rotation.rotate(x)
        check_tensor(self._kind, f"{type(self._rotation).__name__}.rotate", rotated, like_input(x))
        return rotated


def check_rotation(kind: type[Position], rotation: Any, *_: Any) -> CheckedRotation:
    """Return the rotation that a plug-in's position kind has created, with checks of its results.

    Raise UserError if it has no usable method `rotate`.
    """
    if not callable(getattr(rotation, "rotate", None)):
        raise breach(kind, f"made a {type(rotation).__name__} without rotate; allowed: an object with rotate(x)")
    check_arguments(kind, rotation.rotate, "x")
    return CheckedRotation(kind, rotation)


def _of_both(first: Tensor, second: Tensor, interleaved: bool) -> Tensor:
    """Combine the values for the first and the second dimension of each pair: two [..., pairs] -> [..., 2 * pairs]."""
    return torch.stack((first, second), dim=-1).flatten(-2) if interleaved else torch.cat((first, second), dim=-1)
