"""Low-rank adaptation of projections (LoRA, Hu 2021, arXiv 2106.09685).

Shapes: N output features, K input features, R rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.lora import Lora
from archlab.model.arithmetic import Same
from archlab.model.decoder import Decoder
from archlab.model.init import normal
from archlab.model.projection import Projection
from archlab.model.sharded import part_of

_A, _B = "lora_a", "lora_b"


class LoraProjection(Projection):
    """Linear map with frozen weights and a trained change of low rank: W x + b + scale * B (A x).

    A and B have the role of W, which decides their weight decay, learning rate and optimizer.
    """

    def __init__(self, frozen: Projection, config: Lora) -> None:
        role = frozen.roles["weight"]
        super().__init__(frozen.in_features, frozen.out_features, bias=frozen.bias is not None, role=role)
        self.weight, self.bias = frozen.weight, frozen.bias
        self.lora_a = nn.Parameter(torch.empty(config.rank, frozen.in_features))
        self.lora_b = nn.Parameter(torch.empty(frozen.out_features, config.rank))
        self.roles |= {_A: role, _B: role}
        self.constants = {"bias": 0.0, _B: 0.0}
        self.dropout = nn.Dropout(config.dropout) if config.dropout else Same()
        self.scale = config.scale

    def forward(self, input: Tensor) -> Tensor:
        """Apply the linear map: [..., K] -> [..., N]."""
        low = F.linear(self.dropout(input), self.lora_a)
        return super().forward(input) + F.linear(low * self.scale, self.lora_b)


def add_lora(model: Decoder, config: Lora) -> None:
    """Add LoRA to the projections that the config names, in place. Only the added matrices then have gradients.

    `initialize_lora` sets their initial values.
    """
    model.requires_grad_(False)
    for stack in model.stacks:
        for layer, layer_config in zip(stack.layers, stack.layer_configs, strict=True):
            for path in filter(config.changes, layer_config.projections()):
                projection = layer.get_submodule(path)
                assert isinstance(projection, Projection)
                owner, _, name = path.rpartition(".")
                setattr(layer.get_submodule(owner), name, LoraProjection(projection, config))


@torch.no_grad()
def initialize_lora(model: Decoder, seed: int) -> None:
    """Initialize A from a normal distribution with standard deviation 1 / sqrt(K), and B with zeros.

    The model then computes exactly what it computes without LoRA. Each A has its own random stream, derived from the
    seed and its name.
    """
    for name, module in model.named_modules():
        if isinstance(module, LoraProjection):
            deviation = module.in_features**-0.5
            module.lora_a.copy_(part_of(normal(module.lora_a, deviation, f"{seed}/{name}.{_A}"), module.lora_a))
            module.lora_b.zero_()


def is_added(name: str) -> bool:
    """Return whether LoRA has added the parameter with this name."""
    return name.endswith((f".{_A}", f".{_B}"))


def added_to(name: str) -> tuple[str, str]:
    """Return the names of A and B that LoRA may have added to the weight with this name."""
    owner = name.rpartition(".")[0]
    return f"{owner}.{_A}", f"{owner}.{_B}"


def change(a_RK: Tensor, b_NR: Tensor, config: Lora) -> Tensor:
    """Return the change of the weight that the matrices make, [N, K], in their dtype."""
    return config.scale * (b_NR @ a_RK)
