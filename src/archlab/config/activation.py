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
