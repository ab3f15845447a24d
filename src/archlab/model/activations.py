"""Implementations of activations. Most are functions; xIELU is a module with parameters."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components import activation as schema
from archlab.config.components.activation import activation_named
from archlab.config.core.registry import implementation_of, implements, is_users
from archlab.model.arithmetic import at_least_float32
from archlab.model.contract import check_arguments, check_forward, like_input
from archlab.model.roles import check_parameters


@implements(schema.XIELU)
class XIELU(nn.Module):
    """xIELU (Huang 2024): a x^2 + x/2 for x > 0, otherwise (expm1(min(x, -1e-6)) - x) b + x/2.

    a > 0 and b > 1/2 are learned.
    """

    timed_as = "activations"
    BETA, EPS = 0.5, -1e-6

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.empty(1))
        self.alpha_n = nn.Parameter(torch.empty(1))
        # softplus(alpha_p) is 0.8 and softplus(alpha_n) is 0.3, so a and b = 0.5 + 0.3 both start at 0.8.
        self.constants = {"alpha_p": math.log(math.expm1(0.8)), "alpha_n": math.log(math.expm1(0.3))}

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        a = F.softplus(self.alpha_p.to(wide.dtype))
        b = self.BETA + F.softplus(self.alpha_n.to(wide.dtype))
        below = (torch.expm1(wide.clamp(max=self.EPS)) - wide) * b
        return (torch.where(wide > 0, a * wide * wide, below) + self.BETA * wide).to(x.dtype)


class Function(nn.Module):
    """Module that applies an activation function without parameters."""

    timed_as = "activations"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name  # not the function itself, because some functions cannot be pickled

    def forward(self, x: Tensor) -> Tensor:
        return function_named(self.name)(x)


def make_activation(name: str) -> nn.Module:
    kind = activation_named(name)
    implementation = implementation_of(kind)
    activation = implementation() if isinstance(implementation, type) else Function(name)
    if is_users(kind):
        check_parameters(kind, activation, kind.n_parameters)
        if isinstance(activation, Function):
            check_arguments(kind, implementation, "x")
        check_forward(kind, activation, "x", like_input)
    return activation


def function_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function with this name, which must have no parameters."""
    return implementation_of(activation_named(name))


@implements(schema.ReLU)
def relu(x: Tensor) -> Tensor:
    """Return max(x, 0)."""
    return F.relu(x)


@implements(schema.GELU)
def gelu(x: Tensor) -> Tensor:
    """Return x Phi(x), where Phi is the cumulative distribution function of the standard normal distribution."""
    return F.gelu(x)


@implements(schema.GELUTanh)
def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU(x)."""
    return F.gelu(x, approximate="tanh")


@implements(schema.QuickGELU)
def quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


@implements(schema.SiLU)
def silu(x: Tensor) -> Tensor:
    """Return x sigmoid(x)."""
    return F.silu(x)


@implements(schema.ELU)
def elu(x: Tensor) -> Tensor:
    """Return x if x > 0, otherwise exp(x) - 1."""
    return F.elu(x)


@implements(schema.SELU)
def selu(x: Tensor) -> Tensor:
    """Return s x if x > 0, otherwise s alpha (exp(x) - 1). s and alpha are the constants of Klambauer 2017."""
    return F.selu(x)


@implements(schema.ReLUSquared)
def relu_squared(x: Tensor) -> Tensor:
    """Return max(x, 0)^2."""
    return F.relu(x).square()


@implements(schema.Sigmoid)
def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


@implements(schema.Softplus)
def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return F.softplus(x, threshold=40)  # above 40 the result is x even in float64; torch's default of 20 suits float32


@implements(schema.Identity)
def identity(x: Tensor) -> Tensor:
    """Return x."""
    return x
