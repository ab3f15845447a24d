"""Linear map whose parameters have roles."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import RoleName
from archlab.model.arithmetic import at_least_float32


class Projection(nn.Linear):
    """Linear map whose parameters have roles. `model/init.py` later sets their initial values by role."""

    constants = {"bias": 0.0}  # noqa: RUF012 - read only

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: RoleName) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.roles: dict[str, RoleName] = {"weight": role, "bias": "output_bias" if role == "output" else "constant"}

    def reset_parameters(self) -> None:
        """Do nothing: `model/init.py` initializes the parameters."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the linear map: [..., d_in] -> [..., d_out]."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """Apply `F.linear`, or a faster form in compiled decoding on a CPU: [..., K] -> [..., N].

    For one row in a 16-bit dtype, torch's matrix product on a CPU uses at most half of the memory bandwidth.
    """
    has_two_bytes = x.dtype is weight_NK.dtype and x.dtype.itemsize == 2
    if not (is_compiled_row(x) and has_two_bytes and x.device.type == "cpu"):
        return F.linear(x, weight_NK, bias_N)
    y = row_product(x, weight_NK)
    return (y if bias_N is None else y + bias_N).to(x.dtype)


def is_compiled_row(x: Tensor) -> bool:
    """Return whether `x` is a single row in a graph that is compiled for decoding. `row_product` is meant for it."""
    is_decoding = torch.compiler.is_compiling() and not torch.is_grad_enabled()
    return is_decoding and x.shape[:-1].numel() == 1


def row_product(x: Tensor, matrix_NK: Tensor) -> Tensor:
    """Multiply one row, [..., K], by a matrix of any dtype. Return [..., N] in at least float32.

    The compiler generates a loop and fuses it with the loops around it. It reads the matrix once, in its own dtype.
    """
    x_K = at_least_float32(x).flatten()
    # as_strided makes the compiler store x. Otherwise it would compute x, such as a norm, again for each of N rows.
    x_K = x_K.as_strided(x_K.shape, x_K.stride())
    return (matrix_NK.to(x_K.dtype) * x_K).sum(-1).view(*x.shape[:-1], -1)
