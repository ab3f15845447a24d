"""The activation table: name -> what makes one. Most are functions; one has parameters of its own."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.model.arithmetic import at_least_float32


class XIELU(nn.Module):
    """x > 0: a x^2 + x/2; else (expm1(min(x, -1e-6)) - x) b + x/2, with a, b learned and b > 1/2 (Huang 2024)."""

    timed_as = "activations"
    BETA, EPS = 0.5, -1e-6

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.empty(1))
        self.alpha_n = nn.Parameter(torch.empty(1))
        # softplus of the first is 0.8, of the second 0.3, so that a and b both start at 0.8.
        self.constants = {"alpha_p": math.log(math.expm1(0.8)), "alpha_n": math.log(math.expm1(0.3))}

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        wide = at_least_float32(x)
        a = F.softplus(self.alpha_p.to(wide.dtype))
        b = self.BETA + F.softplus(self.alpha_n.to(wide.dtype))
        below = (torch.expm1(wide.clamp(max=self.EPS)) - wide) * b
        return (torch.where(wide > 0, a * wide * wide, below) + self.BETA * wide).to(x.dtype)


class Function(nn.Module):
    """An activation without parameters."""

    timed_as = "activations"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name  # not the function, which may be one that cannot be pickled

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return FUNCTIONS[self.name](x)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Phi(x), with erf (Hendrycks 2016)
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,  # x sigmoid(x); swish with beta 1 (Ramachandran 2017)
    "elu": F.elu,
    "selu": F.selu,
    "relu_squared": lambda x: F.relu(x).square(),  # So 2021 (Primer)
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: F.softplus(x, threshold=40),  # beyond, x is it in float64 too; torch's own 20 is for float32
    "identity": lambda x: x,
}


def make_activation(name: str) -> nn.Module:
    """The activation of that name."""
    return XIELU() if name == "xielu" else Function(name)
