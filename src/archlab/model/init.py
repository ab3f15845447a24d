"""Initial values by role.

Every tensor draws from a random stream of its own, named by the seed and the tensor's name: changing one choice leaves
every other tensor's initial values bit-identical.
"""

import hashlib
import math
from typing import Literal

import torch
from torch import Tensor, nn

from archlab.config.model_schema import ModelConfig

Role = Literal["embedding", "input", "output", "head", "norm"]


class Projection(nn.Linear):
    """A linear map that knows its role; its values are set by `initialise`, not here."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.role: Role = role

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Set every parameter by the role of the module that owns it; a parameter without a role is an error."""
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            role = getattr(module, "role", None)
            if role is None:
                raise TypeError(f"{module_name}.{name} has no role to be initialised by")
            if name == "bias":
                parameter.zero_()
            elif role == "norm":
                parameter.fill_(1.0)
            else:
                deviation = _deviation(role, parameter.shape[-1], config)
                parameter.copy_(_normal(parameter, deviation, f"{seed}/{module_name}.{name}"))


def _deviation(role: Role, fan_in: int, config: ModelConfig) -> float:
    init = config.init
    if role in ("embedding", "head"):
        return getattr(init, role) or 1 / math.sqrt(config.d_model)
    deviation = getattr(init, role) or 1 / math.sqrt(fan_in)
    return deviation / math.sqrt(2 * config.n_layers) if role == "output" and init.depth_scaled else deviation


def _normal(like: Tensor, deviation: float, stream: str) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(like.shape).normal_(0.0, deviation, generator=generator)
