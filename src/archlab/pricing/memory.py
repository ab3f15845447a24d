"""Bytes: what layers keep between passes (keys and values, recurrent states), the weights, and what training keeps
besides activations."""

from collections.abc import Iterator
from typing import Literal

from pydantic import computed_field

from archlab.config.components.component import StateTensor
from archlab.config.components.work import FLOAT32_BYTES
from archlab.config.core.base import Base
from archlab.config.layers import distinct_layers, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import Muon, Optimizer
from archlab.pricing.params import Parameters

Format = Literal["bfloat16", "float32"]
BYTES: dict[Format, int] = {"bfloat16": 2, "float32": FLOAT32_BYTES}
"""Per number."""


class TrainingMemory(Base):
    """Bytes that training holds whatever the batch: float32 weights, gradients and the optimiser's averages.

    Activations are not in it: they depend on the kernels, on recomputation and on the batch.
    """

    weights: int
    gradients: int
    optimizer: int
    """Running means of the gradient and, but for matrices that Muon updates, of its square."""

    @computed_field
    @property
    def total(self) -> int:
        """All of them."""
        return sum(dict(self).values())


def kv_bytes_per_token(model: ModelConfig, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Cache bytes that one more token costs in all layers, before a window bounds it."""
    return kv_cache_bytes(model, context=1, bytes_each=bytes_each)


def kv_cache_bytes(model: ModelConfig, context: int, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Bytes that layers keep per token (keys and values, or latents) of `batch` sequences of `context` tokens; a layer
    keeps no more than its window."""
    return batch * sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, context) if tensor.per_token)


def recurrent_bytes(model: ModelConfig, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Bytes that layers keep of `batch` sequences whatever their length: the states of recurrent mixers."""
    return batch * sum(n * tensor.n_bytes(bytes_each) for tensor, n in _state(model, 1) if not tensor.per_token)


def _state(model: ModelConfig, context: int) -> Iterator[tuple[StateTensor, int]]:
    """What layers keep of one sequence, and how many of them keep the same."""
    if sees_as(model, "two_sided"):
        return  # a cache is refused
    for layer, n in distinct_layers(model).items():
        for branch in layer.branches:
            yield from ((tensor, n) for tensor in branch.component.state(layer.site, context))


def training_memory(counts: Parameters, optimizer: Optimizer) -> TrainingMemory:
    """16 bytes per parameter; 12 of one that is in a matrix where Muon updates it. Of a plug-in AdamW's are counted."""
    one = counts.total * BYTES["float32"]
    return TrainingMemory(weights=one, gradients=one, optimizer=2 * one - counts.matrices * spared(optimizer))


def spared(optimizer: Optimizer) -> int:
    """Bytes per number of a matrix that it keeps less than AdamW."""
    return BYTES["float32"] if isinstance(optimizer, Muon) else 0
