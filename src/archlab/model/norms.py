"""Normalisation over the feature axis, in float32 whatever the activations are."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config import model_schema as schema
from archlab.model.init import Role


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * w + b."""

    role: Role = "norm"

    def __init__(self, config: schema.LayerNorm, width: int) -> None:
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        wide = at_least_float32(x)
        return F.layer_norm(wide, self.weight.shape, self.weight.to(wide.dtype), _like(self.bias, wide), self.eps).to(x.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * w."""

    role: Role = "norm"

    def __init__(self, config: schema.RMSNorm, width: int) -> None:
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        wide = at_least_float32(x)
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)


def make_norm(config: schema.Norm, width: int) -> nn.Module:
    """The norm that the config names, over `width` features."""
    match config:
        case schema.LayerNorm():
            return LayerNorm(config, width)
        case schema.RMSNorm():
            return RMSNorm(config, width)
        case schema.NoNorm():
            return nn.Identity()


def at_least_float32(x: Tensor) -> Tensor:
    """bfloat16 and float16 widened; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _like(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(x.dtype)
