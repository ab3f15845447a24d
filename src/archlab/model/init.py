"""Initial values of parameters, by role.

Every tensor has its own random stream, derived from the seed and the tensor's name. A change to the config therefore
does not change the initial values of unrelated tensors, not even their last bits.
"""

import hashlib
from collections.abc import Container

import torch
from torch import Tensor, nn

from archlab.config.model_schema import ModelConfig
from archlab.model.roles import roles_of
from archlab.model.sharded import part_of


@torch.no_grad()
def initialize(model: nn.Module, config: ModelConfig, seed: int, given: Container[str] = ()) -> None:
    """Initialize every parameter with its constant, or with random values from the normal distribution of its role.
    `given` names parameters that get other values. Parameters on the device `meta` have shapes, but no values."""
    for name, parameter, role, constant in roles_of(model):
        if name in given or parameter.is_meta:
            continue
        if constant is None:
            deviation = role.deviation(config, parameter.shape[-1])
            parameter.copy_(part_of(normal(parameter, deviation, f"{seed}/{name}"), parameter))
        elif isinstance(constant, Tensor):
            parameter.copy_(part_of(constant, parameter))
        else:
            parameter.fill_(constant)


def seed_of(stream: str) -> int:
    """Return the seed of the random stream with this name."""
    return int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little") >> 1


def normal(like: Tensor, deviation: float, stream: str) -> Tensor:
    """Return normally distributed float32 values of the shape of `like`, from the random stream with this name."""
    generator = torch.Generator().manual_seed(seed_of(stream))
    drawn = torch.empty(like.shape, dtype=torch.float32, device="cpu")  # a fixed dtype and device affect the values
    return drawn.normal_(0.0, deviation, generator=generator)
