"""Attention to a recurrent mixer, whose projections begin from those of attention.

Mamba 2 (Wang 2024): C from the queries, B from the keys, x from the values, and the output projection. Gated delta rule
(HyLo, Fashi 2026): queries, keys, values and the output projection. Both are linear attention if the softmax, the
decays, convolutions, gates and norms are left out. Key/value heads are copied for their query heads. Other parameters
begin from the initial values of a new model, as in the published code.

No mapping is known for other mixers, such as short convolutions. They begin as new, and keep only the norms around
attention.
"""

from collections.abc import Mapping

from archlab.config.components.component import NoAttention, NoMixer
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.kimi_delta import KimiDelta
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import ON_ATTENTION
from archlab.config.core.base import kind_of
from archlab.config.layers import LayerConfig
from archlab.transplant.kv_heads import with_copied_heads
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import Architecture, LazyTensor, Weights, numbered

_DELTA = {"q": "q", "k": "k", "v": "v", "out": "out"}
_SOURCES: Mapping[type, Mapping[str, str]] = {
    GatedDelta: _DELTA,
    KimiDelta: _DELTA,
    Mamba2: {"C": "q", "B": "k", "x": "v", "out": "out"},
}
"""For each kind of mixer: its modules, and the modules of attention from which they begin."""

_DROPPED = ("clip_qkv", "softcap", "temperature", "sinks", "sub_norm", "gate", "window", "v_norm")
"""Features of attention that a mixer lacks."""


def _mixers(weights: Weights, target: Architecture) -> Weights:
    groups: dict[str, dict[str, LayerConfig]] = {}
    tensors, dropped = dict[str, LazyTensor](), list[str]()
    for name, own, wanted in weights.pairs(target):
        is_replaced = not isinstance(own.attention, NoAttention) and isinstance(wanted.attention, NoAttention)
        if not is_replaced or not isinstance(own.mixer, NoMixer) or isinstance(wanted.mixer, NoMixer):
            continue
        new, detail = _mapped(weights.under(f"{name}.attention"), own, wanted)
        tensors |= {f"{name}.mixer.{part}": x for part, x in new.items()}
        norms = weights.under(f"{name}.attention_norms")
        tensors |= {f"{name}.mixer_norms.{part}": x for part, x in norms.items()}
        dropped += [n for n in weights.tensors if n.startswith((f"{name}.attention.", f"{name}.attention_norms."))]
        groups.setdefault(detail, {})[name] = _config(own, wanted)
    for detail, layers in groups.items():
        of_layers = tuple(f"{name}." for name in layers)
        weights = weights.changed(
            TO_MIXER.change(f"{numbered(list(layers))}: {detail}"),
            tensors={name: x for name, x in tensors.items() if name.startswith(of_layers)},
            dropped=[name for name in dropped if name.startswith(of_layers)],
            layers=layers,
        )
    return weights


def _config(own: LayerConfig, wanted: LayerConfig) -> LayerConfig:
    """Return the layer after the change. No part of it uses a position encoding that acts on attention."""
    position = wanted.position if own.position.acts_on in ON_ATTENTION else own.position
    multipliers = {name: getattr(wanted.block, name) for name in ("attention_multiplier", "mixer_multiplier")}
    block = own.block.model_copy(update={**multipliers, "attention_norm": wanted.block.attention_norm})
    changed = {"attention": wanted.attention, "mixer": wanted.mixer, "position": position, "block": block}
    return own.model_copy(update=changed)


def _mapped(
    tensors: Mapping[str, LazyTensor], own: LayerConfig, wanted: LayerConfig
) -> tuple[dict[str, LazyTensor], str]:
    """Return the mixer's tensors that begin from attention, and what was done."""
    attention, mixer = own.attention, wanted.mixer
    kinds = f"{kind_of(type(attention))} to {kind_of(type(mixer))}"
    if not isinstance(attention, MultiHead) or type(mixer) not in _SOURCES:
        return {}, f"{kinds}, which begins as new, because no mapping of the weights is known"
    n_heads, n_kv_heads = attention.n_heads, attention.n_kv_heads or attention.n_heads
    needed = _needed(attention, mixer)
    if wrong := [field for field, value in needed.items() if getattr(mixer, field) != value]:
        fits = ", ".join(f"{field} = {needed[field]}" for field in wrong)
        return {}, f"{kinds}, which begins as new, because its heads differ from those of attention ({fits} would fit)"
    factor = own.block.attention_multiplier / wanted.block.mixer_multiplier
    new = dict[str, LazyTensor]()
    for module, source in _SOURCES[type(mixer)].items():
        for part in ("weight", "bias") if _has_bias(mixer, module) else ("weight",):
            is_value_of_key = source == "v" and attention.keys_as_values
            if (tensor := tensors.get(f"{'k' if is_value_of_key else source}.{part}")) is None:
                continue
            if source in ("k", "v"):
                new[f"{module}.{part}"] = with_copied_heads(tensor, TO_MIXER.name, n_kv_heads, n_heads)
            else:
                scale = factor if source == "out" else 1.0
                new[f"{module}.{part}"] = tensor.then(TO_MIXER.name, lambda x, scale=scale: x * scale, tensor.shape)
    pairs = ", ".join(f"{module} from {source}" for module, source in _SOURCES[type(mixer)].items())
    lost = _lost(tensors, attention, mixer)
    return new, f"{kinds}, {pairs}{'; without ' if lost else ''}{', '.join(lost)}"


def _needed(attention: MultiHead, mixer: object) -> dict[str, int]:
    """Return the fields of the mixer that must have these values."""
    n_heads, head_dim, v_dim = attention.n_heads, attention.head_dim or 0, attention.v_dim or 0
    if isinstance(mixer, Mamba2):
        return {"n_heads": n_heads, "n_groups": n_heads, "d_state": head_dim, "head_dim": v_dim}
    return {"n_key_heads": n_heads, "n_value_heads": n_heads, "key_dim": head_dim, "value_dim": v_dim}


def _has_bias(mixer: object, module: str) -> bool:
    return bool(getattr(mixer, "out_bias" if module == "out" else "in_bias", False))


def _lost(tensors: Mapping[str, LazyTensor], attention: MultiHead, mixer: object) -> list[str]:
    """Return the features of attention without a counterpart in the mixer."""
    biases = [
        f"{name} bias"
        for m, name in _SOURCES[type(mixer)].items()
        if f"{name}.bias" in tensors and not _has_bias(mixer, m)
    ]
    norm = [] if attention.qk_norm.kind == "none" else ["qk_norm"]
    return [*biases, *norm, *(field for field in _DROPPED if getattr(attention, field))]


TO_MIXER = Transformation(
    name="recurrent mixer",
    effect="new",
    fields=("model.attention.kind", "model.mixer.kind"),
    rule="The projections of Mamba 2 and of the gated delta rule begin from those of attention. Decays, convolutions "
    "and gates are new, and so are other mixers.",
    paper="Wang 2024, arXiv 2408.15237; Fashi 2026, arXiv 2604.24715",
    apply=_mixers,
)
