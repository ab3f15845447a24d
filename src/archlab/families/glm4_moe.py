"""Configs and weights of GLM 4.5 and similar mixtures of experts (Glm4MoeForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, MLP, PRE_NORMS, SIZES, kv_heads, rms_norm
from archlab.families.mixtral import CORRECTION, FUSED_EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.qwen3 import QK_NORMS
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Switch
from archlab.hf.mixture import GroupKeys, SharedExperts, each_expert, first_dense, shared_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

SIGMOID = (
    Always("mlp.router.score", "sigmoid"),
    Always("mlp.router.correction.rate", 1e-3),
)
"""Sigmoid router with a bias per expert. The published weights contain this bias.

The rate at which training updates the bias is not published; archlab uses the rate of DeepSeek-V3.
"""

EXPERTS = [
    Row("model.layers.{i}.mlp.gate.weight", ROUTER),
    Row("model.layers.{i}.mlp.gate.e_score_correction_bias", CORRECTION),
    *each_expert("model.layers.{i}.mlp.experts"),
    *shared_expert("model.layers.{i}.mlp.shared_experts"),
    *MLP,
]

FAMILY = Family(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        *rms_norm(1e-5),
        Switch(
            "use_qk_norm", "attention.qk_norm.kind", False, "rmsnorm",
            [Always("attention.qk_norm.cast", "before_weight"), Key("rms_norm_eps", "attention.qk_norm.eps", 1e-5)],
        ),
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts", 128),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 1408),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        GroupKeys(),
        SharedExperts("n_shared_experts", 1),
        RopeKeys(fraction=0.5),
        Key("attention_bias", "attention.qkv_bias", False),
        Key("tie_word_embeddings", "head.tied", False),
        first_dense(1),
    ],
    weights=[*ATTENTION, *QK_NORMS, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"num_nextn_predict_layers", "num_mtp_layers"},
    aliases={"num_local_experts": "n_routed_experts"},
)  # fmt: skip
