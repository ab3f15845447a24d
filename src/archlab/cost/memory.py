"""Bytes: the KV cache, the weights, and what training keeps besides activations."""

from typing import Literal

from pydantic import computed_field

from archlab.config.base import Base
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.model.visibility import keys_kept

Format = Literal["bfloat16", "float32"]
BYTES: dict[Format, int] = {"bfloat16": 2, "float32": 4}
"""Per number."""


class TrainingMemory(Base):
    """Bytes that training holds whatever the batch: float32 weights, gradients and AdamW's averages.

    Activations are not in it: they depend on the kernels, on recomputation and on the batch.
    """

    weights: int
    gradients: int
    optimizer: int
    """AdamW's running means of the gradient and of its square."""

    @computed_field
    @property
    def total(self) -> int:
        """All of them."""
        return sum(dict(self).values())


def kv_bytes_per_token(model: ModelConfig, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Cache bytes that one more token costs in all layers, before a window bounds it."""
    return sum(kv_bytes_by_layer(model, bytes_each))


def kv_cache_bytes(model: ModelConfig, context: int, batch: int = 1, bytes_each: int = BYTES["bfloat16"]) -> int:
    """Cache bytes of `batch` sequences of `context` tokens; a layer keeps no more than its window."""
    kept = (keys_kept(layer.attention, context) for layer in layer_configs(model))
    return batch * sum(n * each for n, each in zip(kept, kv_bytes_by_layer(model, bytes_each), strict=True))


def kv_bytes_by_layer(model: ModelConfig, bytes_each: int = BYTES["bfloat16"]) -> list[int]:
    """Per layer, the bytes of one token's keys and values."""
    return [2 * layer.attention.n_kv_heads * layer.attention.head_dim * bytes_each for layer in layer_configs(model)]


def training_memory(n_parameters: int) -> TrainingMemory:
    """16 bytes per parameter."""
    one = n_parameters * BYTES["float32"]
    return TrainingMemory(weights=one, gradients=one, optimizer=2 * one)
