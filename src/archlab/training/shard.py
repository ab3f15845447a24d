"""Sharding of a model over processes: components or experts first, then all tensors by `fully_shard` (FSDP2)."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from archlab.config.model_schema import ModelConfig
from archlab.config.schema import TrainConfig
from archlab.model.decoder import Decoder
from archlab.model.lora import add_lora, initialize_lora
from archlab.model.sharded import is_sharded
from archlab.training.world import World
from archlab.transplant.plan import set_values
from archlab.transplant.weights import LazyTensor, Weights

if TYPE_CHECKING:
    from torch.distributed.tensor import Shard


def sharded(
    config: ModelConfig,
    train: TrainConfig,
    device_type: str,
    world: World,
    given: Mapping[str, LazyTensor] | None = None,
) -> Decoder:
    """Return the model in training mode, with each process holding its part of every tensor. Tensors in `given` have
    these values, and `train.seed` determines the others. With `train.lora`, only the matrices that LoRA adds have
    gradients.

    The initial values are the same as with a single process. On a CPU, a process never has more than one whole layer
    in memory. The whole model is allocated first, but the operating system provides memory only for values that are
    written, and tensors are initialized one at a time.
    """
    if world.mesh is None:
        model = Decoder(config, seed=None)
        if train.lora:
            add_lora(model, train.lora)
        return _with_values(model.to(device_type), config, train, given)
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model = Decoder(config, seed=None)
    if world.tensor > 1:
        from archlab.training.parallel import share_components

        share_components(model, world.mesh["within"])
    if world.expert > 1:
        from archlab.training.parallel import deal_experts

        deal_experts(model, world.mesh["within"])
    if train.lora:
        add_lora(model, train.lora)
    mesh = world.mesh["replicate", "shard"]
    divide = partial(_evenly_divided, world.mesh["shard"].size())
    for layer in model.all_layers:
        fully_shard(layer, mesh=mesh, shard_placement_fn=divide)
    # Embedding, last norm and head stay whole from the forward pass until their gradient is computed.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, shard_placement_fn=divide)
    register_fsdp_forward_method(model, "hidden")
    return _with_values(model.to(device_type), config, train, given)


def sum_over_replicas(model: Decoder, world: World, *, is_last: bool) -> None:
    """Let the next backward pass sum gradients over replicas if it is the last one before the update.

    Earlier backward passes sum them only over the processes of `shard`, so replicas communicate once per update.
    """
    if world.mesh is not None:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(model, FSDPModule)
        model.set_requires_all_reduce(is_last)


def _evenly_divided(size: int, parameter: nn.Parameter) -> "Shard | None":
    """Return the first axis that `size` processes divide evenly; None means the first axis, with padding.

    With padding, each process would receive a whole row if there are fewer rows than processes. For stacked experts, a
    row is an expert.
    """
    from torch.distributed.tensor import Shard

    if is_sharded(parameter):
        return None
    return next((Shard(axis) for axis, n in enumerate(parameter.shape) if n % size == 0), None)


def trained_model(weights: Weights, device_type: str, world: World) -> Decoder:
    """Return the model of trained weights, with each process holding its part of every tensor."""
    return sharded(weights.model, TrainConfig(), device_type, world, weights.tensors)


def _with_values(
    model: Decoder, config: ModelConfig, train: TrainConfig, given: Mapping[str, LazyTensor] | None
) -> Decoder:
    set_values(model, config, train.seed, given or {})
    initialize_lora(model, train.seed)
    return model.train()
