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

    def rotate(self, x: Tensor) -> Tensor:
        """[B, H, T, head_dim] -> the same, its first `rotating` dimensions rotated."""
        rotating = 2 * self.cos.shape[-1]
        first, rest = x[..., :rotating].to(self.cos.dtype), x[..., rotating:]
        a, b = (first[..., 0::2], first[..., 1::2]) if self.interleaved else first.chunk(2, dim=-1)
        rotated = (a * self.cos - b * self.sin, b * self.cos + a * self.sin)
        joined = torch.stack(rotated, dim=-1).flatten(-2) if self.interleaved else torch.cat(rotated, dim=-1)
        return torch.cat((joined.to(x.dtype), rest), dim=-1) if rest.shape[-1] else joined.to(x.dtype)


def rotation(config: Rope, width: int, positions_BT: Tensor, lengths_BT: Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation of vectors of that width at positions of texts of those lengths; angles in float32, or `dtype` if
    wider."""
    rotating = int(width * config.fraction)
    pairs = torch.arange(rotating // 2, device=positions_BT.device, dtype=wide(dtype))
    per_token, amplitude = frequencies(config, rotating, lengths_BT[..., None], pairs)
    angles = (positions_BT[..., None].to(wide(dtype)) * per_token)[:, None]
    return Rotation(angles.cos() * amplitude, angles.sin() * amplitude, config.pairing == "interleaved")
