"""The activation table: name -> function."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Phi(x), with erf (Hendrycks 2016)
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,  # x sigmoid(x); swish with beta 1 (Ramachandran 2017)
    "elu": F.elu,
    "selu": F.selu,
    "relu_squared": lambda x: F.relu(x).square(),  # So 2021 (Primer)
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "identity": lambda x: x,
}
