"""Configs and weights of Laguna (LagunaForCausalLM in transformers): windows, gated attention with its own number of
query heads in each layer, and a mixture of experts with a sigmoid router.
"""

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.glm4_moe import SIGMOID
from archlab.families.llama import RMS_NORM, SIZES, attention_biases, kv_heads
from archlab.families.mixtral import CORRECTION, FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.families.qwen2_moe import WEIGHTS, SharedExpert
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key, Only, lookup
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes, with_each_layer
from archlab.hf.mixture import mlp_layer_types, shared_expert
from archlab.hf.repeated import RepeatedKeys
from archlab.hf.rope_per_type import PartialRopePerType
from archlab.hf.weight_map import Row, linear

LAYER = "model.layers.{i}"


class Rope(PartialRopePerType):
    """One RoPE for each layer type."""

    def fraction(self, hf: ConfigReader, parameters: Raw) -> float:
        """Return the fraction of the dimensions that RoPE rotates. Raise UserError if only a key outside
        `rope_parameters` says it, because the published code does not read that key."""
        outside = hf.get("partial_rotary_factor", 1.0)
        if "partial_rotary_factor" not in parameters and outside != 1.0:
            raise hf.refuse("partial_rotary_factor", outside, "1.0, or this key inside rope_parameters")
        return super().fraction(hf, parameters)


class Gate:
    """Key `gating`, which says whether the softplus gate has one factor per head or one per element."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        gating = hf.get("gating", True, object)
        if gating is not True and gating not in ("per-head", "per-element"):
            raise hf.refuse("gating", gating, "true, per-head, per-element")
        ours["attention.gate"] = {"per": "element" if gating == "per-element" else "head", "activation": "softplus"}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["gating"] = f"per-{lookup(model, 'attention.gate.per')}"


class HeadsPerLayer:
    """Key `num_attention_heads_per_layer`, which may be absent. The windows and RoPEs must already have been read."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        n_layers = ours["n_layers"]
        heads = hf.get("num_attention_heads_per_layer", [ours["attention.n_heads"]] * n_layers)
        if len(heads) != n_layers:
            allowed = f"one for each of the {n_layers} layers"
            raise hf.refuse("num_attention_heads_per_layer", f"{len(heads)} numbers", allowed)
        if heads.count(heads[0]) == n_layers:
            ours["attention.n_heads"] = heads[0]
        else:
            ours["layers"] = with_each_layer(ours.get("layers"), "attention.n_heads", heads)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["num_attention_heads_per_layer"] = [layer.multi_head.n_heads for layer in layer_configs(model)]


def repeated(hf: ConfigReader, layers: list[Raw]) -> Raw:
    """Return the right values of the keys that repeat what other keys say."""
    per = "per_head" if layers[0]["attention.gate"]["per"] == "head" else "per_element"
    return {
        "gating_types": [per] * len(layers),
        "mlp_only_layers": [i for i, layer in enumerate(layers) if layer["mlp.kind"] != "moe"],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    }


FAMILY = Family(
    model_type="laguna",
    architecture="LagunaForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128),
        *RMS_NORM,
        *qk_rms_norm(1e-6),
        *attention_biases(),
        Gate(),
        *MIXTURE,
        *SIGMOID,
        Key("num_experts", "mlp.experts", 256),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 512),
        Key("moe_routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        SharedExpert(default=512, gate=False),
        LayerTypes(window=512, unused=512),
        Rope({FULL: {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, SLIDING: {"rope_theta": 1e4}}),
        HeadsPerLayer(),
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(),
        Only("moe_apply_router_weight_on_input", False, "false, because the published class refuses true"),
        Only("moe_router_logit_softcapping", 0.0, "0.0, because archlab does not cap the logits of routers"),
        RepeatedKeys(repeated),
    ],
    weights=[
        *WEIGHTS,
        *QK_NORMS,
        *linear(f"{LAYER}.self_attn.g_proj", "layers.{i}.attention.gate"),
        Row(f"{LAYER}.mlp.experts.e_score_correction_bias", CORRECTION),
        *shared_expert(f"{LAYER}.mlp.shared_expert"),
    ],
    alternatives=[
        *FUSED_EXPERTS,
        Row(f"{LAYER}.mlp.gate.e_score_correction_bias", CORRECTION),
        *shared_expert(f"{LAYER}.mlp.shared_experts"),
    ],
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_local_experts": "num_experts"},
)
