"""Configs and weights of the language model of Gemma 3 (Gemma3ForCausalLM in transformers)."""

from dataclasses import dataclass

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.gemma import gemma_fields
from archlab.families.gemma2 import DOUBLE_NORMS, SCALE
from archlab.families.llama import AROUND, ATTENTION, MLP
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes, full_every
from archlab.hf.rope import rope_fields, rope_parameters
from archlab.hf.weight_map import Row


@dataclass(frozen=True)
class RopePerType:
    """One RoPE for sliding-window layers and one for full-attention layers. Both are objects inside `rope_parameters`.

    Older files have `rope_local_base_freq` for sliding-window layers, and `rope_theta` and `rope_scaling` for
    full-attention layers. `layer_types` must already have been read.
    """

    local: float = 1e4
    """Default of theta in sliding-window layers."""
    theta: float = 1e6
    """Default of theta in full-attention layers."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Read the RoPE keys and set one RoPE for the whole model, or one for each layer kind."""
        nested = hf.get("rope_parameters", {})
        if flat := set(nested) - {SLIDING, FULL}:
            raise hf.refuse(
                "rope_parameters", sorted(flat), f"one set of RoPE parameters for {SLIDING} and one for {FULL}"
            )
        older = hf.get("rope_scaling", {})
        if "type" in older and "rope_type" not in older and older["type"] != "default":
            raise hf.refuse("rope_scaling.type", older["type"], "the key rope_type; transformers 5 ignores type here")
        scaling = (nested.get(FULL) or {}) | older
        full = self._position(hf, scaling, hf.get("rope_theta", self.theta))
        sliding = self._position(hf, nested.get(SLIDING) or {}, hf.get("rope_local_base_freq", self.local))
        if layers := ours.get("layers"):
            # The model's own position is a plain RoPE, because a layer kind inherits all fields that it does not set.
            ours["position"] = {"kind": "rope"}
            layers["sliding"]["position"], layers["full"]["position"] = sliding, full
        else:
            ours["position"] = full if ours.get("attention.window") is None else sliding

    def fraction(self, hf: ConfigReader, parameters: Raw) -> float:
        """Return the fraction of the dimensions that RoPE rotates. Raise UserError if it is not 1, because the
        published code ignores the key."""
        fraction = parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
        if fraction != 1.0:
            raise hf.refuse("partial_rotary_factor", fraction, "1.0, because the published code ignores the key")
        return fraction

    def _position(self, hf: ConfigReader, parameters: Raw, theta: float) -> Raw:
        fraction = self.fraction(hf, parameters)
        if not parameters.get("truncate", True):
            raise hf.refuse("rope_parameters.truncate", False, "true, because the published code ignores this key")
        outside, inside = (values.get("original_max_position_embeddings") for values in (hf, parameters))
        if outside and not inside and parameters.get("rope_type", "default") not in ("default", "linear", "dynamic"):
            raise hf.refuse("original_max_position_embeddings", outside, "this key only inside the RoPE scaling")
        only_inside = ConfigReader({}, hf.where)  # keys outside the scaling are not read
        theta = parameters.get("rope_theta", theta)
        return rope_fields(only_inside, theta, fraction, "half", parameters, hf.get("max_position_embeddings"))

    def values(self, rope: Rope, longest: int) -> Raw:
        """Return the config.json values of a RoPE. `longest` is the maximum sequence length."""
        return rope_parameters(rope, longest)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write one RoPE for each layer type of the model into `rope_parameters`."""
        layers = {
            FULL if layer.multi_head.window is None else SLIDING: layer.position for layer in layer_configs(model)
        }
        hf["rope_parameters"] = {
            kind: self.values(rope, model.max_seq_len) for kind, rope in layers.items() if isinstance(rope, Rope)
        }


FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *gemma_fields(kv_heads=4, activation_key="hidden_activation"),
        Always("norm.placement", "double"),
        Always("attention.qk_norm.kind", "rmsnorm"),
        Always("attention.qk_norm.unit_offset", True),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
        SCALE,
        Key("final_logit_softcapping", "head.softcap", None),
        LayerTypes(full_every(6), unused=4096),
        RopePerType(),
    ],
    weights=[
        *ATTENTION,
        Row("model.layers.{i}.self_attn.q_norm.weight", "layers.{i}.attention.q_norm.norm.weight"),
        Row("model.layers.{i}.self_attn.k_norm.weight", "layers.{i}.attention.k_norm.norm.weight"),
        *MLP,
        *DOUBLE_NORMS,
        *AROUND,
    ],
    buffers=("rotary_emb.inv_freq",),
    prefix="model.",
    # The published code does not cap attention scores.
    no_effect=frozenset({"hidden_act", "attn_logit_softcapping"}),
)
