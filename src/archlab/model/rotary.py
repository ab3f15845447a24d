"""Rotary position embedding (Su 2021): queries and keys turn by an angle proportional to their position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archlab.config.model_schema import Rope


@dataclass(frozen=True)
class Rotation:
    """cos and sin of every position's angles, [T, turning / 2], at least float32."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def turn(self, x: Tensor) -> Tensor:
        """[B, H, T, head_dim] -> the same, its first `turning` dimensions turned."""
        turning = 2 * self.cos.shape[-1]
        first, rest = x[..., :turning].to(self.cos.dtype), x[..., turning:]
        a, b = (first[..., 0::2], first[..., 1::2]) if self.interleaved else first.chunk(2, dim=-1)
        turned = (a * self.cos - b * self.sin, b * self.cos + a * self.sin)
        joined = torch.stack(turned, dim=-1).flatten(-2) if self.interleaved else torch.cat(turned, dim=-1)
        return torch.cat((joined.to(x.dtype), rest), dim=-1) if rest.shape[-1] else joined.to(x.dtype)


def rotation(config: Rope, head_dim: int, positions_T: Tensor) -> Rotation:
    """The rotation at these positions; angles in float32 (float64 positions: float64)."""
    turning = int(head_dim * config.fraction)
    dtype = torch.promote_types(positions_T.dtype, torch.float32) if positions_T.is_floating_point() else torch.float32
    exponent = torch.arange(0, turning, 2, device=positions_T.device, dtype=dtype) / turning
    angles = positions_T.to(dtype)[:, None] * config.theta**-exponent
    return Rotation(angles.cos(), angles.sin(), config.pairing == "interleaved")
