"""Cost of each branch of a model, in all layers of one kind: parameters, FLOPs of a forward pass, and bytes."""

from collections.abc import Iterator
from typing import NamedTuple

from archlab.config.components.work import Pass
from archlab.config.layers import Branch, LayerConfig, distinct_layers, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.pricing.source import stack_passes


class BranchCost(NamedTuple):
    """Cost of one branch, without the norms around it, in all layers of one kind."""

    is_encoder: bool
    layer: LayerConfig
    n_layers: int
    branch: Branch
    parameters: int
    """Number of parameters in all these layers."""
    flops: float
    """FLOPs of the forward pass in all these layers."""
    state_bytes: int
    """Bytes of caches and recurrent states in all these layers, for all sequences of the pass."""


def branch_costs(model: ModelConfig, model_pass: Pass) -> Iterator[BranchCost]:
    """Yield the cost of every branch of an encoder and of the decoder, or of the only stack. `model_pass` is the
    forward pass of the decoder or of the only stack."""
    has_cache = not sees_as(model, "two_sided")
    for stack, own_pass in stack_passes(model, model_pass):
        is_encoder = stack is not model
        for layer, n in distinct_layers(stack).items():
            for branch in layer.branches:
                work = branch.component.work(branch.site, own_pass)
                state = branch.state(own_pass.tokens, own_pass.source) if has_cache and not is_encoder else ()
                yield BranchCost(
                    is_encoder,
                    layer,
                    n,
                    branch,
                    n * sum(branch.component.parameters(branch.site).values()),
                    n * sum(operation.flops for operation in work),
                    n * own_pass.texts * sum(tensor.n_bytes(own_pass.bytes_each) for tensor in state),
                )
