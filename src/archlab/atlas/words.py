"""What the layers of a model are, in the field's words; read from the resolved layers, never from names."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from archlab.config.layers import LayerConfig
from archlab.config.norm import NoNorm
from archlab.config.position import Rope

Layers = Sequence[LayerConfig]

_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "none": "none"}
_GATED = {"silu": "SwiGLU", "relu": "ReGLU", "sigmoid": "GLU", "identity": "bilinear"}
_PLAIN = {"relu": "ReLU", "relu_squared": "ReLU²", "silu": "SiLU"}
_POSITIONS = {
    "none": "NoPE",
    "sinusoidal": "sinusoid",
    "learned": "learned",
    "shaw": "Shaw",
    "t5": "T5",
    "alibi": "ALiBi",
    "rope": "RoPE",
}


def each(values: Iterable[str]) -> str:
    """Distinct values in order of appearance, joined: layers may differ."""
    return "+".join(dict.fromkeys(values))


def norm(layers: Layers) -> str:
    """LayerNorm, RMSNorm."""
    return each(_NORMS.get(layer.norm.kind, layer.norm.kind) for layer in layers)


def placement(layers: Layers) -> str:
    """Pre, post, double, output."""
    return each("none" if isinstance(layer.norm, NoNorm) else layer.norm.placement for layer in layers)


def block(layers: Layers) -> str:
    """Serial or parallel branches."""
    return each("serial" if layer.block.parallel == "none" else "parallel" for layer in layers)


def activation(layers: Layers) -> str:
    """The MLP by its name: ReLU, GELU, SwiGLU, GEGLU; either approximation of GELU is GELU."""
    return each(_mlp(layer) for layer in layers)


def _mlp(layer: LayerConfig) -> str:
    act, gated = layer.dense.activation, layer.dense.kind == "gated"
    if "gelu" in act:
        return "GEGLU" if gated else "GELU"
    return _GATED.get(act, f"gated {act}") if gated else _PLAIN.get(act, act)


def position(layers: Layers) -> str:
    """RoPE, NoPE, ALiBi, learned, ...; of layers that differ, each."""
    return each(_POSITIONS[layer.position.kind] for layer in layers)


def heads(layers: Layers) -> str:
    """MHA: as many KV heads as query heads; MQA: one; GQA: between."""
    return each(_heads(layer.multi_head.n_heads, layer.multi_head.n_kv_heads) for layer in layers)


def _heads(queries: int, keys: int) -> str:
    return "MHA" if keys == queries else "MQA" if keys == 1 else "GQA"


def reach(layers: Layers) -> str:
    """Which keys are seen: all before it in every layer, a window in every one, or some of both."""
    local = [is_local(layer) for layer in layers]
    return "local" if all(local) else "local+full" if any(local) else "full"


def is_local(layer: LayerConfig) -> bool:
    """Whether a query of this layer misses some earlier keys."""
    return layer.multi_head.window is not None or layer.multi_head.blocks is not None


def biases(layers: Layers) -> str:
    """On all projections, on some, on none."""
    flags = [f for x in layers for f in (x.multi_head.qkv_bias, x.multi_head.out_bias, x.dense.bias)]
    return "all" if all(flags) else "some" if any(flags) else "none"


def ratio(layers: Layers) -> str:
    """`3:1 window 4096`: local layers to one full layer in the repeating pattern; empty where all are full."""
    windows = sorted({layer.multi_head.window for layer in layers if layer.multi_head.window})
    reach_text = " ".join(["window", *map(str, windows)]) if windows else "sparse"
    match reach(layers):
        case "full":
            return ""
        case "local":
            return reach_text
        case _:
            runs = [(local, len(list(run))) for local, run in groupby(map(is_local, layers))]
            most = {kind: max(n for local, n in runs if local == kind) for kind in (True, False)}
            return f"{most[True]}:{most[False]} {reach_text}"


def thetas(layers: Layers) -> list[float]:
    """Distinct RoPE bases in order of appearance."""
    return list(dict.fromkeys(x.position.theta for x in layers if isinstance(x.position, Rope)))
