"""Activations that training keeps for the backward pass, counted as the modules keep them without a compiler."""

from collections.abc import Mapping
from typing import NamedTuple

from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.layers import LayerConfig, final_norm
from archlab.config.model_schema import ModelConfig


class Saved(NamedTuple):
    """Bytes."""

    waiting: float
    """Of every micro-batch whose backward pass has not begun."""
    in_use: float
    """Beside it, of the one whose backward pass runs."""


def layer_bytes(layer: LayerConfig, this: Pass) -> float:
    """Of one layer."""
    return sum(operation.saved for operation in layer.work(this))


def outer_bytes(model: ModelConfig, this: Pass) -> float:
    """Around the layers: what the final norm keeps, and hidden states with their gradient."""
    norm = sum(operation.saved for operation in this.norm(final_norm(model), model.d_model))
    return norm + 2 * this.rows * model.d_model * FLOAT32_BYTES


def saved(layers: Mapping[LayerConfig, int], this: Pass, *, recompute: bool) -> Saved:
    """Of layers, each with how many there are; with `recompute` a layer keeps its input alone, and one layer at a time
    the rest."""
    each = {layer: layer_bytes(layer, this) for layer in layers}
    if not recompute:
        return Saved(sum(n * each[layer] for layer, n in layers.items()), 0.0)
    inputs = sum(n * this.rows * layer.d_model * FLOAT32_BYTES for layer, n in layers.items())
    return Saved(inputs, max(each.values()))
