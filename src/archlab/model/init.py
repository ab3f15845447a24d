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

Role = Literal["embedding", "input", "output", "head"]
"""Of a module whose weights are drawn. A module may also (or only) have `constants`: parameter -> value."""


class Projection(nn.Linear):
    """A linear map that knows its role; its values are set by `initialise`, not here."""

    constants = {"bias": 0.0}  # noqa: RUF012 - read only

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.role: Role = role

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Set every parameter to its module's constant or draw it by its module's role; one with neither is an error."""
    for module_name, module in model.named_modules():
        constants, role = getattr(module, "constants", {}), getattr(module, "role", None)
        for name, parameter in module.named_parameters(recurse=False):
            if name in constants:
                parameter.fill_(constants[name])
            elif role:
                deviation = _deviation(role, parameter.shape[-1], config)
                parameter.copy_(_normal(parameter, deviation, f"{seed}/{module_name}.{name}"))
            else:
                raise TypeError(f"{module_name}.{name} has neither a constant nor a role to be initialised by")


def _deviation(role: Role, fan_in: int, config: ModelConfig) -> float:
    init = config.init
    if role in ("embedding", "head"):
        return getattr(init, role) or 1 / math.sqrt(config.d_model)
    deviation = getattr(init, role) or 1 / math.sqrt(fan_in)
    return deviation / math.sqrt(2 * config.n_layers) if role == "output" and init.depth_scaled else deviation


def _normal(like: Tensor, deviation: float, stream: str) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(like.shape, dtype=torch.float32)  # whatever the default, which would change the stream
    return drawn.normal_(0.0, deviation, generator=generator)
