"""Layers in a few words each, for people to read."""

from archlab.config.layers import LayerConfig, layer_runs
from archlab.config.model_schema import ModelConfig, NoNorm, Rope


def layer_table(model: ModelConfig) -> list[dict[str, str]]:
    """One row per run of identical layers: heading -> words."""
    return [
        {"layers": str(first) if first == last else f"{first}-{last}", **_words(layer)}
        for first, last, layer in layer_runs(model)
    ]


def _words(layer: LayerConfig) -> dict[str, str]:
    heads, mlp = layer.attention, layer.mlp
    return {
        "kind": layer.kind,
        "q/kv/dim": f"{heads.n_heads}/{heads.n_kv_heads}/{heads.head_dim}",
        "window": "-" if heads.window is None else str(heads.window),
        "position": _position(layer),
        "mlp": f"{mlp.kind} {mlp.activation} {mlp.d_ff}",
        "norm": _norm(layer),
    }


def _position(layer: LayerConfig) -> str:
    position = layer.position
    return f"rope {position.theta:g}" if isinstance(position, Rope) else position.kind


def _norm(layer: LayerConfig) -> str:
    words = layer.norm.kind if isinstance(layer.norm, NoNorm) else f"{layer.norm.kind} {layer.norm.placement}"
    return words if layer.block.parallel == "none" else f"{words}, parallel {layer.block.parallel}"
