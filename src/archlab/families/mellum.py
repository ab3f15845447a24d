"""Configs and weights of Mellum 2 (MellumForCausalLM in transformers): Qwen 3 MoE with a RoPE per layer type."""

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.families.gemma3_text import RopePerType
from archlab.families.llama import RMS_NORM, SIZES, kv_heads
from archlab.families.mixtral import FUSED_EXPERTS, TRAINING_ONLY
from archlab.families.olmo import BIASES
from archlab.families.qwen2_moe import WEIGHTS, experts
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import mlp_layer_types


class NestedRope(RopePerType):
    """One RoPE for sliding-window layers and one for full-attention layers. Both are objects inside `rope_parameters`.

    Unlike Gemma 3, the published code does not read other keys. `layer_types` must already have been read.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set one RoPE for the whole model, or one for each layer kind."""
        nested = self.nested(hf)
        if layers := ours.get("layers"):
            # The model's own position is a plain RoPE, because a layer kind inherits all fields that it does not set.
            ours["position"] = {"kind": "rope"}
            layers["sliding"]["position"] = self.of_type(hf, nested, SLIDING)
            layers["full"]["position"] = self.of_type(hf, nested, FULL)
        else:
            ours["position"] = self.of_type(hf, nested, FULL if ours.get("attention.window") is None else SLIDING)

    def nested(self, hf: ConfigReader) -> Raw:
        """Return the RoPE parameters by layer type. Raise UserError for the keys of older files, which the published
        code ignores."""
        for key in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
            if (value := hf.get(key)) is not None:
                raise hf.refuse(key, value, "no value, because the published code reads rope_parameters only")
        return hf.get("rope_parameters", self.defaults())

    def defaults(self) -> Raw:
        """Return the RoPE parameters of a file without `rope_parameters`."""
        return {FULL: {"rope_theta": self.theta}, SLIDING: {"rope_theta": self.local}}

    def of_type(self, hf: ConfigReader, nested: Raw, kind: str) -> Raw:
        """Return the position encoding of a layer type. Raise UserError if `nested` has no theta for it."""
        own = nested.get(kind)
        if not isinstance(own, dict) or not own.get("rope_theta"):
            raise hf.refuse("rope_parameters", nested, f"an object with rope_theta for {kind}")
        return self._position(hf, own, own["rope_theta"])


class PartialRope(NestedRope):
    """One RoPE for each layer type, which may rotate only some dimensions of each head."""

    def fraction(self, hf: ConfigReader, parameters: Raw) -> float:
        """Return the fraction of the dimensions that RoPE rotates."""
        return parameters.get("partial_rotary_factor", 1.0)

    def values(self, rope: Rope, longest: int) -> Raw:
        return {**super().values(rope, longest), "partial_rotary_factor": rope.fraction}


FAMILY = Family(
    model_type="mellum",
    architecture="MellumForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(4),
        Key("head_dim", "attention.head_dim", 128),
        *RMS_NORM,
        *qk_rms_norm(1e-6),
        *experts(64, 8, 896),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        LayerTypes(window=1024, unused=1024),
        NestedRope(theta=5e5),
        *BIASES,
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(n_dense=0),
    ],
    weights=[*WEIGHTS, *QK_NORMS],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    buffers=("rotary_emb.inv_freq",),
    prefix="model.",
    no_effect=TRAINING_ONLY | {"num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"},
    aliases={"num_local_experts": "num_experts"},
)
