"""Configs and weights of Mellum 2 (MellumForCausalLM in transformers): Qwen 3 MoE with a RoPE per layer type."""

from archlab.families.llama import RMS_NORM, SIZES, attention_biases, kv_heads
from archlab.families.mixtral import FUSED_EXPERTS, TRAINING_ONLY
from archlab.families.qwen2_moe import WEIGHTS, experts
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import mlp_layer_types
from archlab.hf.rope_per_type import RopePerType

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
        RopePerType({FULL: {"rope_theta": 5e5}, SLIDING: {"rope_theta": 1e4}}),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(n_dense=0),
    ],
    weights=[*WEIGHTS, *QK_NORMS],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"},
    aliases={"num_local_experts": "num_experts"},
)
