"""Activations by name."""

from typing import Literal

Activation = Literal[
    "relu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "elu",
    "selu",
    "relu_squared",
    "sigmoid",
    "softplus",
    "identity",
    "xielu",
]
ACTIVATION_PARAMETERS = {"xielu": 2}
"""Learned numbers of an activation that has any."""

ACTIVATION_FLOPS: dict[Activation, int] = {
    "relu": 1, "gelu": 5, "gelu_tanh": 9, "quick_gelu": 5, "silu": 4, "elu": 4, "selu": 5, "relu_squared": 2,
    "sigmoid": 3, "softplus": 3, "identity": 0, "xielu": 8,
}  # fmt: skip
"""Operations on one number; an elementary function and a division are one each."""

GRADIENT_FROM_OUTPUT: tuple[Activation, ...] = ("relu", "sigmoid", "identity")
"""Training keeps their output, which what comes next keeps too; of the others the input."""
