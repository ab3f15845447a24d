"""Parts that get their own copy of a tensor that they shared with others."""

import torch

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.position import T5
from archlab.config.layers import LayerConfig
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import DECODER, Architecture, LazyTensor, Weights, numbered, with_fields


def _unshared(weights: Weights, target: Architecture) -> Weights:
    return _own_tables(_own_norms(weights, target), target)


def _own_norms(weights: Weights, target: Architecture) -> Weights:
    tensors, layers = dict[str, LazyTensor](), dict[str, LayerConfig]()
    for name, own, wanted in weights.pairs(target):
        if (own.block.parallel, wanted.block.parallel) == ("shared", "separate"):
            shared = f"{name}.{own.branches[0].name}_norms.before"
            tensors |= {f"{name}.mlp_norms.before.{part}": _copy(x) for part, x in weights.under(shared).items()}
            layers[name] = with_fields(own, "block", parallel="separate")
    if not layers:
        return weights
    return weights.changed(
        UNSHARED.change(f"norms of the MLP in {numbered(list(layers))}"), tensors=tensors, layers=layers
    )


def _own_tables(weights: Weights, target: Architecture) -> Weights:
    for stack, layers in weights.architecture.stacks.items():
        own, wanted = layers[0].position, target.stacks[stack][0].position
        if not (isinstance(own, T5) and isinstance(wanted, T5) and own.shared and not wanted.shared):
            continue
        shared = f"{stack.removesuffix(DECODER)}position_bias.weight"
        separate = {f"{stack}.{i}": with_fields(layer, "position", shared=False) for i, layer in enumerate(layers)}
        with_scores = [name for name, layer in separate.items() if isinstance(layer.attention, AnyAttention)]
        table = _copy(weights.tensors[shared])
        tensors = {f"{name}.attention.position_bias.weight": table for name in with_scores}
        change = UNSHARED.change(f"position biases of {numbered(with_scores)}")
        weights = weights.changed(change, tensors=tensors, dropped=[shared], layers=separate)
    return weights


def _copy(tensor: LazyTensor) -> LazyTensor:
    return tensor.then(UNSHARED.name, torch.clone, tensor.shape)


UNSHARED = Transformation(
    name="own copies of shared tensors",
    effect="exact",
    fields=("model.block.parallel", "model.position.shared"),
    rule="The MLP of a parallel layer gets a copy of the shared norm, and each layer a copy of T5's position "
    "biases. The logits stay the same, and the copies are then trained separately.",
    paper="Black 2022, arXiv 2204.06745; Raffel 2020, arXiv 1910.10683",
    apply=_unshared,
)
