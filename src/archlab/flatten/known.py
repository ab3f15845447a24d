"""What a flattened file can have, in one table; any other choice is refused by name, and never left out in silence.

So a new choice costs nothing here: it is refused until somebody writes its lines and names it in the table.
"""

import json
from collections.abc import Iterator
from typing import Any, get_args

from archlab.config import model_schema, moe, multi_head, norm, position
from archlab.config.base import Base
from archlab.config.dense import ResolvedGatedMLP, ResolvedPlainMLP
from archlab.config.layers import PER_LAYER, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, raise_problems
from archlab.config.unions import NoMixer
from archlab.config.visibility import BlockSparse

KNOWN: dict[type[Base], str] = {
    model_schema.Block: "parallel attention_multiplier mlp_multiplier",
    model_schema.Embedding: "width scale round_scale norm",
    model_schema.Head: "tied bias scale softcap",
    model_schema.Dropout: "embedding attention branch",
    norm.LayerNorm: "eps weight bias unit_offset placement",
    norm.RMSNorm: "eps weight unit_offset cast placement",
    norm.ScaleNorm: "eps placement",
    norm.DynamicTanh: "alpha placement",
    norm.NoNorm: "",
    multi_head.ResolvedMultiHead: "n_heads n_kv_heads head_dim v_dim scale softcap window stride global_tokens blocks "
    "qkv_bias out_bias qk_norm clip_qkv sub_norm",
    multi_head.QKLayerNorm: "eps weight bias unit_offset scope",
    multi_head.QKRMSNorm: "eps weight unit_offset cast scope",
    BlockSparse: "size summary",
    position.NoPosition: "",
    position.Sinusoidal: "theta layout offset",
    position.Learned: "offset",
    position.Shaw: "max_distance",
    position.T5: "buckets max_distance shared",
    position.Alibi: "max_bias form",
    position.Rope: "theta fraction pairing order scaling",
    position.NoScaling: "",
    position.LinearScaling: "factor",
    position.DynamicNTK: "factor original_max_seq_len",
    position.Llama3Scaling: "factor low_freq_factor high_freq_factor original_max_seq_len",
    position.Yarn: "factor original_max_seq_len beta_fast beta_slow truncate attention_factor",
    position.Longrope: "original_max_seq_len short_factor long_factor factor attention_factor",
    position.Proportional: "turning",
    NoMixer: "",
    ResolvedPlainMLP: "activation d_ff bias sub_norm",
    ResolvedGatedMLP: "activation d_ff bias sub_norm clamp up_offset",
    moe.ResolvedMoE: "experts active d_ff gated activation bias clamp up_offset router shared balance",
    moe.Router: "score bias normalise factor correction groups",
    moe.Groups: "n kept by",
    moe.ResolvedShared: "d_ff gate bias",
    # Of training, so without a line in the file.
    moe.Balance: "loss pooled router_z_loss",
    moe.Correction: "rate",
    model_schema.Init: "embedding input output head depth_scaled",
}
"""Section of a resolved config -> its fields that fragments write, besides `kind`."""


def refuse_unknown(model: ModelConfig) -> None:
    """ConfigError that names every choice of the model that no flattened file has."""
    resolved, layers = resolve(model), layer_configs(model)
    found: dict[tuple[str, str, str], list[str]] = {}
    for name in ("norm", "position", "embedding", "head", "dropout", "init"):
        for what in _unknown(resolved, name, "model"):
            found.setdefault(what, [])
    for layer in dict.fromkeys(layers):
        for what in (what for name in PER_LAYER for what in _unknown(layer, name, "model")):
            found.setdefault(what, []).append(layer.kind)
    raise_problems(
        [
            Problem(path, f"{value}{_where(kinds, model)}; allowed in a flattened file: {allowed}")
            for (path, value, allowed), kinds in found.items()
        ],
        "the config to flatten",
    )


def _unknown(section: Base, name: str, above: str, written: bool = True) -> Iterator[tuple[str, str, str]]:
    """(path, value, what is allowed) of what the table lacks in a field."""
    value, field, path = getattr(section, name), type(section).model_fields[name], f"{above}.{name}"
    default = field.get_default(call_default_factory=True)
    if not written and value != default:
        yield path, _text(value), _text(default)
    elif written and isinstance(value, Base) and type(value) not in KNOWN:
        allowed = [kind.model_fields["kind"].default for kind in get_args(field.annotation) if kind in KNOWN]
        yield f"{path}.kind", getattr(value, "kind", ""), ", ".join(allowed)
    elif written and isinstance(value, Base):
        known = KNOWN[type(value)].split()
        for inner in type(value).model_fields:
            if inner != "kind":
                yield from _unknown(value, inner, path, inner in known)


def _text(value: Any) -> str:
    """As one writes it in a config."""
    return json.dumps(value.model_dump() if isinstance(value, Base) else value).replace('"', "")


def _where(kinds: list[str], model: ModelConfig) -> str:
    """In which kinds of layers, where there are several."""
    return f" in layer kind {', '.join(kinds)}" if kinds and model.layers else ""
