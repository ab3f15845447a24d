"""Activations that training keeps for the backward pass, counted as the modules keep them without a compiler."""

from archlab.config.layers import LayerConfig, final_norm, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.work import FLOAT32_BYTES, Pass
from archlab.errors import UserError

_UNCOUNTED = ("scans", "convolutions")


def layer_bytes(layer: LayerConfig, this: Pass) -> float:
    """Of one layer. UserError for recurrent mixers, whose scans keep what is not counted yet."""
    if not _is_counted(layer):
        raise UserError(f"layer kind {layer.kind}: activations of a recurrent mixer are not counted; memory is unknown")
    return sum(operation.saved for operation in layer.work(this))


def is_counted(model: ModelConfig) -> bool:
    """Whether no layer is recurrent."""
    return all(_is_counted(layer) for layer in layer_configs(model))


def _is_counted(layer: LayerConfig) -> bool:
    return not any(operation.kind in _UNCOUNTED and operation.flops for operation in layer.work(Pass(1, 1)))


def outer_bytes(model: ModelConfig, this: Pass) -> float:
    """Around the layers: what the final norm keeps, and hidden states with their gradient."""
    norm = sum(operation.saved for operation in this.norm(final_norm(model), model.d_model))
    return norm + 2 * this.rows * model.d_model * FLOAT32_BYTES


def activation_bytes(model: ModelConfig, this: Pass, *, recompute: bool = False) -> float:
    """Of the whole model; with `recompute` a layer keeps its input alone, and one layer at a time the rest."""
    layers = [layer_bytes(layer, this) for layer in layer_configs(model)]
    if recompute:
        inputs = len(layers) * this.rows * model.d_model * FLOAT32_BYTES
        return inputs + max(layers) + outer_bytes(model, this)
    return sum(layers) + outer_bytes(model, this)
