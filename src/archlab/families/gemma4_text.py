"""Configs and weights of the language model of Gemma 4 (Gemma4ForCausalLM in transformers): layers without a window
have heads of another width, and their values can be the projected keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.gemma2 import DOUBLE_NORMS
from archlab.families.llama import AROUND, ATTENTION, MLP, SIZES, attention_biases
from archlab.families.qwen3 import QK_NORMS
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Field, Key, lookup
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import all_experts, is_mixture
from archlab.hf.rope_per_type import ProportionalRopePerType
from archlab.hf.weight_map import Row, linear

OF_LAYER = {"head_dim": "attention.head_dim", "num_key_value_heads": "attention.n_kv_heads"}
"""Mapping from the keys of one layer in `per_layer_config` to archlab's fields."""


SIZES_OF_EXPERTS = {
    "mlp.experts": "num_experts", "mlp.active": "top_k_experts", "mlp.d_ff": "moe_intermediate_size",
}  # fmt: skip
"""Mapping from archlab's fields to the keys that a mixture of experts needs."""


def types_of(_hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. Every sixth layer and the last layer have no window."""
    return [FULL if (i + 1) % 6 == 0 or i == n_layers - 1 else SLIDING for i in range(n_layers)]


class Windows(LayerTypes):
    """Windows, and the heads of layers without a window. The heads of layers with a window must already have been
    read."""

    @property
    def limits(self) -> Mapping[str, str]:
        return {"per_layer_config": f"equal for all layers of type {FULL}"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        listed = hf.get("layer_types", kind=list)
        if listed and listed[-1] == SLIDING:
            raise hf.refuse("layer_types", listed, f"a list that ends with {FULL}, as the published code requires")
        super().read(hf, ours)
        layers = ours.get("layers")
        full = layers["full"] if layers else ours
        full["attention.keys_as_values"] = hf.get("attention_k_eq_v", False)
        types = (
            [FULL if kind == "full" else SLIDING for kind in layers["pattern"]] if layers else [FULL] * ours["n_layers"]
        )
        full |= self._heads(hf, types, has_own=full["attention.keys_as_values"])

    def _heads(self, hf: ConfigReader, types: list[str], *, has_own: bool) -> Raw:
        """Return the heads of layers without a window. Published files have a key for each of their fields. Files that
        transformers saved have `per_layer_config` instead."""
        head_dim, n_kv_heads = hf.get("global_head_dim", 512), hf.get("num_global_key_value_heads", kind=int)
        implied = {"head_dim": head_dim, **({"num_key_value_heads": n_kv_heads} if has_own and n_kv_heads else {})}
        own = {i: implied for i, kind in enumerate(types) if kind == FULL}
        each = {int(i): values for i, values in hf.get("per_layer_config", own, dict).items()}
        first = each.get(types.index(FULL), {})  # a layer that is not listed has the heads of the layers with a window
        if each != (dict.fromkeys(own, first) if first else {}) or set(first) - set(OF_LAYER):
            allowed = f"equal values of {' and '.join(OF_LAYER)} for all layers of type {FULL}, and no other layers"
            raise hf.refuse("per_layer_config", each, allowed)
        return {OF_LAYER[key]: value for key, value in first.items()}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        heads = [layer.multi_head for layer in layer_configs(model)]
        first = next((x for x in heads if x.window is not None), heads[-1])
        hf |= {"head_dim": first.head_dim, "num_key_value_heads": first.n_kv_heads}
        hf |= {"global_head_dim": heads[-1].head_dim, "num_global_key_value_heads": heads[-1].n_kv_heads}
        hf["attention_k_eq_v"] = heads[-1].keys_as_values


ROPE = ProportionalRopePerType(
    {
        SLIDING: {"rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }
)


@dataclass(frozen=True)
class NotBuilt:
    """Key of an option that archlab cannot build. The value 0 turns the option off."""

    hf_key: str
    default: int
    reason: str

    @property
    def limits(self) -> Mapping[str, str]:
        return {self.hf_key: "0"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the option is on."""
        if (value := hf.get(self.hf_key, self.default)) != 0:
            raise hf.refuse(self.hf_key, value, f"0, because {self.reason}")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf[self.hf_key] = 0


class SeesBack:
    """Key `use_bidirectional_attention`. Its value `vision` changes only tokens of pictures."""

    @property
    def limits(self) -> Mapping[str, str]:
        return {"use_bidirectional_attention": "null or vision"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        if (value := hf.get("use_bidirectional_attention", kind=str)) not in (None, "vision"):
            allowed = "null, vision, because no token of a text may attend to later ones"
            raise hf.refuse("use_bidirectional_attention", value, allowed)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key."""


class Experts:
    """Keys of the mixtures of experts. The dense MLP of each layer is then the shared expert. The fields of the dense
    MLP must already have been read."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        is_on = hf.get("enable_moe_block", False)
        if not is_on:
            return
        ours |= {
            "mlp.kind": "moe", "mlp.shared.d_ff": ours["mlp.d_ff"], "mlp.own_norms": True,
            "mlp.router.norm": True, "mlp.router.expert_scale": True,
            **{field: hf.need(key) for field, key in SIZES_OF_EXPERTS.items()},
        }  # fmt: skip

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["enable_moe_block"] = isinstance(model.mlp, MoE)
        if isinstance(model.mlp, MoE):
            hf |= {key: lookup(model, field) for field, key in SIZES_OF_EXPERTS.items()}
            hf["intermediate_size"] = model.mlp.shared and model.mlp.shared.d_ff


def fields(window: int) -> list[Field]:
    """Return the fields of a family of Gemma 4. `window` is the default of its key."""
    return [
        *SIZES,
        Key("num_key_value_heads", "attention.n_kv_heads", 4),
        Key("head_dim", "attention.head_dim", 256),
        *attention_biases(),
        Always("norm.kind", "rmsnorm"),
        Always("norm.placement", "double"),
        Key("rms_norm_eps", "norm.eps", 1e-6),
        Always("attention.qk_norm.kind", "rmsnorm"),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
        Key("rms_norm_eps", "attention.v_norm.eps", 1e-6),
        Always("attention.scale", 1.0),
        Always("block.stream_scale", True),
        Always("mlp.kind", "gated"),
        ActivationKey("hidden_activation", "gelu_pytorch_tanh"),
        Always("embedding.scale", "sqrt_d_model"),
        Always("embedding.round_scale", True),
        Key("tie_word_embeddings", "head.tied", True),
        Key("final_logit_softcapping", "head.softcap", None),
        Windows(types_of, window=window, unused=window),
        ROPE,
        SeesBack(),
        NotBuilt("num_kv_shared_layers", 0, "layers of archlab do not share keys and values"),
    ]


WEIGHTS = [
    *ATTENTION,
    *QK_NORMS,
    *MLP,
    *DOUBLE_NORMS,
    Row("model.layers.{i}.layer_scalar", "layers.{i}.stream_scale"),
    *AROUND,
]

_LAYER, _MLP = "model.layers.{i}", "layers.{i}.mlp"

EXPERTS = [
    Row(f"{_LAYER}.router.scale", f"{_MLP}.router.norm.weight"),
    Row(f"{_LAYER}.router.per_expert_scale", f"{_MLP}.router.expert_scale"),
    Row(f"{_LAYER}.router.proj.weight", f"{_MLP}.router.weight"),
    *all_experts(f"{_LAYER}.experts.gate_up_proj", f"{_LAYER}.experts.down_proj"),
    *(row for x in ("gate", "up", "down") for row in linear(f"{_LAYER}.mlp.{x}_proj", f"{_MLP}.shared.{x}")),
    *linear(f"{_LAYER}.pre_feedforward_layernorm", f"{_MLP}.shared_before", when=is_mixture),
    *linear(f"{_LAYER}.post_feedforward_layernorm_1", f"{_MLP}.shared_after"),
    *linear(f"{_LAYER}.pre_feedforward_layernorm_2", f"{_MLP}.experts_before"),
    *linear(f"{_LAYER}.post_feedforward_layernorm_2", f"{_MLP}.experts_after"),
]

FAMILY = Family(
    model_type="gemma4_text",
    architecture="Gemma4ForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *fields(window=512),
        NotBuilt("hidden_size_per_layer_input", 256, "archlab has no embeddings per layer"),
        Experts(),
    ],
    weights=[*WEIGHTS, *EXPERTS],
    prefix="model.",
    # The MLP of layers that share keys and values can be twice as wide.
    no_effect=frozenset({"use_double_wide_mlp", "vocab_size_per_layer_input", "hidden_act"}),
)
