"""Configs and weights of dots.llm1 (Dots1ForCausalLM in transformers): the attention of Qwen 3 and the mixture of
experts of DeepSeek V3.
"""

from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, RMS_NORM, SIZES, attention_biases, kv_heads
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Flag, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import GroupKeys, SharedExperts, first_dense
from archlab.hf.rope import RopeKeys


def upper_layers(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: sliding windows from layer `max_window_layers` on, if `sliding_window` is not null."""
    window, first = hf.or_null("sliding_window", 4096), hf.get("max_window_layers", 62)
    return [SLIDING if window is not None and i >= first else FULL for i in range(n_layers)]


FAMILY = Family(
    model_type="dots1",
    architecture="Dots1ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        kv_heads(32),
        *RMS_NORM,
        *qk_rms_norm(1e-6),
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts"),
        Key("num_experts_per_tok", "mlp.active"),
        Key("moe_intermediate_size", "mlp.d_ff", 1408),
        Flag("norm_topk_prob", "mlp.router.normalise", False),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        GroupKeys(),
        SharedExperts("n_shared_experts", 0),
        RopeKeys(),
        LayerTypes(upper_layers),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        first_dense(0),
    ],
    weights=[*ATTENTION, *QK_NORMS, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=UNREAD_KEYS,
    aliases={"num_local_experts": "n_routed_experts"},
)
