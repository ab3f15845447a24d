"""Rotary position embedding (Su 2021): queries and keys rotate by an angle proportional to their position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archlab.config.position import Rope
from archlab.model.arithmetic import wide
from archlab.model.rope_scaling import frequencies


@dataclass(frozen=True)
class Rotation:
    """cos and sin of every position's angles, [B or 1, 1, T, rotating / 2], in at least float32."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    is_partial: bool
    """Whether some dimensions do not rotate."""

    def rotate(self, x: Tensor) -> Tensor:
        """[B, H, T, head_dim] -> the same, pairs of its dimensions rotated."""
        rotating = 2 * self.cos.shape[-1]
        first = (x[..., :rotating] if self.is_partial else x).to(self.cos.dtype)
        a, b = (first[..., 0::2], first[..., 1::2]) if self.interleaved else first.chunk(2, dim=-1)
        rotated = (a * self.cos - b * self.sin, b * self.cos + a * self.sin)
        joined = torch.stack(rotated, dim=-1).flatten(-2) if self.interleaved else torch.cat(rotated, dim=-1)
        joined = joined.to(x.dtype)
        return torch.cat((joined, x[..., rotating:]), dim=-1) if self.is_partial else joined


def rotation(config: Rope, width: int, positions_BT: Tensor, lengths_BT: Tensor, dtype: torch.dtype) -> Rotation:
    """cos and sin of the angles at every position.

    By them rotate vectors of that width, in texts of those lengths; angles in float32, or `dtype` if wider.
    """
    rotating = width if config.fraction == 1 else int(width * config.fraction)
    pairs = torch.arange(rotating // 2, device=positions_BT.device, dtype=wide(dtype))
    per_token, amplitude = frequencies(config, rotating, lengths_BT[..., None], pairs)
    angles = (positions_BT[..., None].to(wide(dtype)) * per_token)[:, None]
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return Rotation(cos, sin, config.pairing == "interleaved", is_partial=rotating < width)
