"""Positions that are added to the token embedding: sinusoidal and learned."""

import torch
from torch import Tensor, nn

from archlab.config import model_schema as schema
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.init import Role


class SinusoidalPositions(nn.Module):
    """PE(t, 2i) = sin(t / theta^(2i/d)), PE(t, 2i+1) = cos of the same (Vaswani 2017)."""

    def __init__(self, config: schema.Sinusoidal, d_model: int) -> None:
        super().__init__()
        self.theta, self.d_model = config.theta, d_model

    def forward(self, positions_T: Tensor) -> Tensor:
        """[T] -> [T, D]."""
        exponent = torch.arange(0, self.d_model, 2, device=positions_T.device) / self.d_model
        angles = positions_T[:, None].float() * self.theta**-exponent
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, : self.d_model]


class LearnedPositions(nn.Module):
    """One learned vector per position."""

    role: Role = "embedding"

    def __init__(self, max_seq_len: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_seq_len, d_model))

    def forward(self, positions_T: Tensor) -> Tensor:
        """[T] -> [T, D]; UserError beyond the last position."""
        if len(positions_T) > len(self.weight):
            raise UserError(f"{len(positions_T)} tokens, but learned positions end at max_seq_len = {len(self.weight)}")
        return self.weight[positions_T]


def make_positions(model: ModelConfig) -> nn.Module | None:
    """The module whose output is added to the embedding, or None where positions act in the attention or not at all."""
    match model.position:
        case schema.Sinusoidal() as config:
            return SinusoidalPositions(config, model.d_model)
        case schema.Learned():
            return LearnedPositions(model.max_seq_len, model.d_model)
        case _:
            return None
