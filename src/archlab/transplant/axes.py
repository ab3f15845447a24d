"""Axes of the tensors of a model: the features along each axis.

The axes of a tensor are written as in `query < stream`: rows are the features `query`, and the last axis, which a
matrix product sums over, has the features `stream`. A dot is an axis that is the same at every width, and axes at the
end may be left out if they are. `a+b` is an axis with the features of a, then those of b. `length a` is one number that
is proportional to the length of a vector with the features a.
"""

from collections.abc import Mapping
from typing import NamedTuple

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Component, NoAttention, NoMixer, NoMLP
from archlab.config.components.dense import Dense, GatedMLP, PlainMLP
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.kimi_delta import KimiDelta
from archlab.config.components.latent_attention import Latent
from archlab.config.components.mamba import Mamba
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import NoNorm
from archlab.config.components.position import T5, Alibi, Position, Shaw, TransformerXL
from archlab.config.components.rglru import RGLRU
from archlab.config.components.short_conv import ShortConv
from archlab.config.layers import LayerConfig


class Features(NamedTuple):
    """Features along an axis, and the number of copies of each in a wider model."""

    size: int
    """Number of features in the trained model."""
    times: int = 1
    block: int = 1
    """Number of consecutive features that are copied together, such as those of a head. Copies of a block are
    adjacent."""


def _norm(name: str, features: str) -> dict[str, str]:
    return {
        f"{name}.weight": features,
        f"{name}.bias": features,
        f"{name}.scale": f"length {features}",
        f"{name}.alpha": ".",
    }


def _projection(names: str, axes: str) -> dict[str, str]:
    outputs = axes.partition("<")[0].strip()
    return {name: value for n in names.split() for name, value in ((f"{n}.weight", axes), (f"{n}.bias", outputs))}


_DENSE = {
    **_projection("up gate", "hidden < stream"),
    **_projection("down", "stream < hidden"),
    **_norm("sub_norm", "hidden"),
}
_DELTA = {
    **_projection("q k", "key < stream"),
    **_projection("v gate", "value < stream"),
    **_projection("beta", "head < stream"),
    **_projection("decay", "decay < stream"),
    **_projection("out", "stream < value"),
    **_norm("norm", "."),
    "conv.weight": "key+key+value . .",
    "A_log": "head",
    "dt_bias": "decay",
}
_COMPONENTS: dict[type[Component], dict[str, str]] = {
    NoAttention: {},
    NoMixer: {},
    NoMLP: {},
    MultiHead: {
        **_projection("q", "query < stream"),
        **_projection("k", "key < stream"),
        **_projection("v", "value < stream"),
        **_projection("gate", "gate < stream"),
        **_projection("out", "stream < mixed"),
        **_norm("q_norm.norm", "normed_query"),
        **_norm("k_norm.norm", "normed_key"),
        **_norm("sub_norm", "mixed"),
        "sinks": "head",
    },
    Latent: {
        **_projection("q_down kv_down", ". < stream"),
        **_projection("q_up", "query < narrow_query"),
        **_projection("kv_up", "key_value < ."),
        **_projection("out", "stream < mixed"),
        **_norm("q_norm", "."),
        **_norm("kv_norm", "."),
    },
    PlainMLP: _DENSE,
    GatedMLP: _DENSE,
    MoE: {
        **_projection("router", ". < stream"),
        **_projection("shared.up shared.gate", "shared < stream"),
        **_projection("shared.down", "stream < shared"),
        **_projection("shared_gate", ". < stream"),
        "router.correction": ".",
        "router.expert_scale": ".",
        **_norm("router.norm", "stream"),
        **_norm("experts_before", "stream"),
        **_norm("experts_after", "stream"),
        **_norm("shared_before", "stream"),
        **_norm("shared_after", "stream"),
        **_projection("latent_down", ". < stream"),
        **_projection("latent_up", "stream < ."),
        "experts.up": ". hidden < expert",
        "experts.gate": ". hidden < expert",
        "experts.down": ". expert < hidden",
        "experts.up_bias": ". hidden",
        "experts.gate_bias": ". hidden",
        "experts.down_bias": ". expert",
    },
    Mamba: {
        **_projection("gate x", "inner < stream"),
        **_projection("dt_low B C", ". < inner"),
        **_projection("dt", "inner < ."),
        **_projection("out", "stream < inner"),
        **dict.fromkeys(("dt_norm.weight", "B_norm.weight", "C_norm.weight"), "."),
        "conv.weight": "inner . .",
        "A_log": "inner .",
        **dict.fromkeys(("conv.bias", "dt_bias", "D"), "inner"),
    },
    Mamba2: {
        **_projection("gate x", "inner < stream"),
        **_projection("B C", "group < stream"),
        **_projection("dt", "head < stream"),
        **_projection("out", "stream < inner"),
        **_norm("norm", "inner"),
        "conv.weight": "inner+group+group . .",
        "conv.bias": "inner+group+group",
        **dict.fromkeys(("A_log", "dt_bias", "D"), "head"),
    },
    GatedDelta: _DELTA,
    KimiDelta: {
        **_DELTA,
        **_projection("gate.down decay.down", ". < stream"),
        **_projection("gate.up", "value < ."),
        **_projection("decay.up", "decay < ."),
    },
    RGLRU: {
        **_projection("gate x", "channel < stream"),
        **_projection("out", "stream < channel"),
        "conv.weight": "channel . .",
        "conv.bias": "channel",
        **dict.fromkeys(("input_gate.weight", "forget_gate.weight"), "group within < within"),
        **dict.fromkeys(("input_gate.bias", "forget_gate.bias", "Lambda"), "channel"),
    },
    ShortConv: {
        **_projection("x input_gate output_gate out", "stream < stream"),
        "conv.weight": "stream . .",
        "conv.bias": "stream",
    },
}
"""Axes of the tensors of each component, by name."""

_POSITIONS: dict[type[Position], dict[str, str]] = {
    T5: {"position_bias.weight": ". head"},
    Shaw: {"position_bias.weight": ". ."},
    TransformerXL: {
        "position_bias.projection.weight": "query < .",
        "position_bias.content_bias": "head .",
        "position_bias.distance_bias": "head .",
    },
}

OF_NORM = {**_norm("before", "stream"), **_norm("after", "stream"), **_norm("stream", "stream")}
"""Axes of the tensors of the norms around a component."""

OUTSIDE = {
    "embedding.weight": ". token",
    **_projection("embedding.widen", "stream < ."),
    **_norm("embedding.norm", "stream"),
    "segments.weight": ". added",
    "positions.weight": ". added",
    **_norm("summed.norm", "added"),
    **_projection("summed.widen", "stream < added"),
    "position_bias.weight": ". head",
    **_norm("norm", "stream"),
    **_projection("head.transform.dense", "token < stream"),
    **_norm("head.transform.norm", "token"),
    **_projection("head.narrow", ". < stream"),
    "head.weight": ". < token",
    "head.bias": ".",
}
"""Axes of the tensors outside the layers. Those of an encoder have the same names, after `encoder.`."""

GROWING: dict[type[Component], tuple[str, ...]] = {
    MultiHead: ("n_heads", "n_kv_heads"),
    Latent: ("n_heads",),
    PlainMLP: ("d_ff",),
    GatedMLP: ("d_ff",),
    MoE: ("d_ff",),
    Mamba: ("inner_width",),
    Mamba2: ("n_heads", "n_groups"),
    GatedDelta: ("n_key_heads", "n_value_heads"),
    KimiDelta: ("n_key_heads", "n_value_heads"),
    RGLRU: ("lru_width", "n_heads"),
}
"""Fields of components that a wider model may multiply."""

FIXED: dict[type[Component], tuple[str, ...]] = {
    MultiHead: ("head_dim", "v_dim"),
    Latent: ("q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim"),
    Mamba: ("dt_rank", "d_state"),
    Mamba2: ("head_dim", "d_state"),
    GatedDelta: ("key_dim", "value_dim"),
    KimiDelta: ("key_dim", "value_dim"),
}
"""Other fields of components that set the shapes of tensors."""


def axes_of(layer: LayerConfig, place: str) -> dict[str, str] | None:
    """Return the axes of the tensors of a component, by name. Return None for a user-defined component or position
    encoding, whose tensors are unknown."""
    component = getattr(layer, place)
    if type(component) not in _COMPONENTS:
        return None
    position = layer.site_of(place).position
    if not isinstance(component, AnyAttention) or position.acts_on != "scores" or position.is_shared:
        return _COMPONENTS[type(component)]
    if type(position) is Alibi:
        return _COMPONENTS[type(component)]
    if type(position) not in _POSITIONS:
        return None
    return _COMPONENTS[type(component)] | _POSITIONS[type(position)]


def features_of(component: Component, times: Mapping[str, int], stream: Features) -> dict[str, Features]:
    """Return the features of a component by name. `times` holds the factors of the fields in GROWING."""
    match component:
        case MultiHead():
            return {"stream": stream} | _of_heads(component, times["n_heads"], times["n_kv_heads"])
        case Latent(n_heads=heads, query_width=width, q_rank=rank):
            queries, values = component.nope_dim + component.v_dim, component.v_dim
            return {
                "stream": stream,
                "narrow_query": Features(rank) if rank else stream,
                "head": Features(heads, times["n_heads"]),
                "query": Features(heads * width, times["n_heads"], width),
                "key_value": Features(heads * queries, times["n_heads"], queries),
                "mixed": Features(heads * values, times["n_heads"], values),
            }
        case Dense():
            return {"stream": stream, "hidden": Features(component.d_ff, times["d_ff"])}
        case MoE(d_ff=d_ff, shared=shared, latent=latent):
            return {
                "stream": stream,
                "expert": Features(latent.width) if latent else stream,
                "hidden": Features(d_ff, times["d_ff"]),
                "shared": Features(shared.d_ff, times["shared.d_ff"]) if shared else Features(0),
            }
        case Mamba(inner_width=width):
            return {"stream": stream, "inner": Features(width, times["inner_width"])}
        case Mamba2(n_heads=heads, head_dim=width, n_groups=groups, d_state=state):
            return {
                "stream": stream,
                "head": Features(heads, times["n_heads"]),
                "inner": Features(heads * width, times["n_heads"], width),
                "group": Features(groups * state, times["n_groups"], state),
            }
        case GatedDelta(n_value_heads=heads, value_dim=width, key_width=keys, key_dim=key):
            return {
                "stream": stream,
                "head": Features(heads, times["n_value_heads"]),
                "value": Features(heads * width, times["n_value_heads"], width),
                "decay": Features(component.decay_width, times["n_value_heads"], component.decay_width // heads),
                "key": Features(keys, times["n_key_heads"], key),
            }
        case RGLRU(lru_width=channels, n_heads=groups):
            within = times["lru_width"] // times["n_heads"]
            return {
                "stream": stream,
                "group": Features(groups, times["n_heads"]),
                "within": Features(channels // groups, within),
                "channel": Features(channels, times["lru_width"], 1 if within > 1 else channels // groups),
            }
        case _:
            return {"stream": stream}


def _of_heads(attention: MultiHead, queries: int, keys: int) -> dict[str, Features]:
    heads, kv_heads, width, value = attention.n_heads, attention.n_kv_heads, attention.head_dim, attention.v_dim
    scope = "head" if isinstance(attention.qk_norm, NoNorm) else attention.qk_norm.scope
    features = {
        "head": Features(heads, queries),
        "query": Features(heads * width, queries, width),
        "key": Features(kv_heads * width, keys, width),
        "value": Features(kv_heads * value, keys, value),
        "mixed": Features(heads * value, queries, value),
    }
    kv_head = Features(kv_heads, keys)
    features["gate"] = features["head" if attention.gate and attention.gate.per == "head" else "mixed"]
    normed = {"head": (Features(width),) * 2, "each_head": (features["head"], kv_head)}
    query, key = normed.get(scope, (features["query"], features["key"]))
    return features | {"normed_query": query, "normed_key": key}
