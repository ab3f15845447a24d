"""Initial values by role.

Every tensor draws from a random stream of its own, named by the seed and the tensor's name: changing one choice leaves
every other tensor's initial values bit-identical.
"""

import hashlib

import torch
from torch import Tensor, nn

from archlab.config.model_schema import ModelConfig
from archlab.model.cut import part_of
from archlab.model.roles import roles_of


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Set every parameter to its constant, or draw it by its role."""
    for name, parameter, role, constant in roles_of(model):
        if constant is None:
            deviation = role.deviation(config, parameter.shape[-1])
            parameter.copy_(part_of(_normal(parameter, deviation, f"{seed}/{name}"), parameter))
        elif isinstance(constant, Tensor):
            parameter.copy_(part_of(constant, parameter))
        else:
            parameter.fill_(constant)


def _normal(like: Tensor, deviation: float, stream: str) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(like.shape, dtype=torch.float32)  # whatever the default, which would change the stream
    return drawn.normal_(0.0, deviation, generator=generator)
