"""A linear map that knows what it is for."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import RoleName
from archlab.model.arithmetic import at_least_float32


class Projection(nn.Linear):
    """A linear map that knows its role; its values are set by `initialise`, not here."""

    constants = {"bias": 0.0}  # noqa: RUF012 - read only

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: RoleName) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.roles: dict[str, RoleName] = {"weight": role, "bias": "output_bias" if role == "output" else "constant"}

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., d_in] -> [..., d_out]."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """[..., K] -> [..., N]: `F.linear`, or what a compiler makes a faster loop of."""
    if not (is_compiled_row(x) and x.dtype is weight_NK.dtype and x.dtype.itemsize == 2):
        return F.linear(x, weight_NK, bias_N)
    y = row_product(x, weight_NK)
    return (y if bias_N is None else y + bias_N).to(x.dtype)


def is_compiled_row(x: Tensor) -> bool:
    """Whether it is one row, in a graph that is compiled for a CPU to decode.

    torch's own product of one row in 16 bits reads its matrix at half of the memory's speed or less; the loop that the
    compiler makes is part of those before and after it.
    """
    is_decoding = torch.compiler.is_compiling() and not torch.is_grad_enabled()
    return is_decoding and x.device.type == "cpu" and x.shape[:-1].numel() == 1


def row_product(x: Tensor, matrix_NK: Tensor) -> Tensor:
    """[..., K] of one row -> [..., N] in at least float32, of a matrix of any format."""
    x_K = at_least_float32(x).flatten()
    # Asked for its place in memory, the compiler writes it; else it computes what gives it, a norm, for each of N rows.
    x_K = x_K.as_strided(x_K.shape, x_K.stride())
    return (matrix_NK.to(x_K.dtype) * x_K).sum(-1).view(*x.shape[:-1], -1)
