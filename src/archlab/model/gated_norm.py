"""The gate on a recurrent mixer's output, and the RMS norm beside it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.recurrent import GatedRMSNorm
from archlab.model.arithmetic import at_least_float32


class Gate(nn.Module):
    """x silu(z), without a norm."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """[..., width] twice -> the same, in at least float32."""
        return at_least_float32(x) * F.silu(at_least_float32(z))


class GatedNorm(nn.Module):
    """Gate before: rms(x silu(z)) w. After: rms(x) w silu(z). The mean square is over each `width` features."""

    def __init__(self, config: GatedRMSNorm, width: int, groups: int = 1) -> None:
        super().__init__()
        self.width, self.eps, self.gate_first = width, config.eps, config.gate == "before"
        self.weight = nn.Parameter(torch.empty(groups * width))
        self.constants = {"weight": 1.0}

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """[..., n * width] twice -> the same, in at least float32; a weight of one group serves all n."""
        x, gate = at_least_float32(x), F.silu(at_least_float32(z))
        x = (x * gate if self.gate_first else x).unflatten(-1, (-1, self.width))
        normed = F.rms_norm(x, (self.width,), eps=self.eps) * self.weight.to(x.dtype).view(-1, self.width)
        return normed.flatten(-2) if self.gate_first else normed.flatten(-2) * gate
