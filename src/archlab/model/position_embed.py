"""Positions that are added to the token embedding: sinusoidal and learned."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from archlab.config import position as schema
from archlab.config.model_schema import ModelConfig
from archlab.model.arithmetic import wide
from archlab.model.roles import RoleName


class SinusoidalPositions(nn.Module):
    """sin and cos of t / theta^(2i/d), side by side or in halves (Vaswani 2017)."""

    def __init__(self, config: schema.Sinusoidal, d_model: int) -> None:
        super().__init__()
        self.config, self.d_model = config, d_model

    def forward(self, positions_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, T] -> [B, T, D] of that dtype; the angles in at least float32."""
        exponent = torch.arange(0, self.d_model, 2, dtype=wide(dtype), device=positions_BT.device) / self.d_model
        angles = (positions_BT[..., None] + self.config.offset).to(wide(dtype)) * self.config.theta**-exponent
        waves = (angles.sin(), angles.cos())
        joined = torch.stack(waves, -1).flatten(-2) if self.config.layout == "interleaved" else torch.cat(waves, -1)
        return joined[..., : self.d_model].to(dtype)


class LearnedPositions(nn.Module):
    """One learned vector per position."""

    roles: ClassVar[dict[str, RoleName]] = {"weight": "embedding"}

    def __init__(self, config: schema.Learned, max_seq_len: int, d_model: int) -> None:
        super().__init__()
        self.offset = config.offset
        self.weight = nn.Parameter(torch.empty(config.offset + max_seq_len, d_model))

    def forward(self, positions_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, T] -> [B, T, D] of that dtype; the Decoder sees to it that none is beyond the last."""
        return self.weight[positions_BT.clamp(min=0) + self.offset].to(dtype)


def make_positions(model: ModelConfig) -> nn.Module | None:
    """The module whose output is added to the embedding; None where positions act elsewhere or not at all."""
    match model.position:
        case schema.Sinusoidal() as config:
            return SinusoidalPositions(config, model.d_model)
        case schema.Learned() as config:
            return LearnedPositions(config, model.max_seq_len, model.d_model)
        case _:
            return None
