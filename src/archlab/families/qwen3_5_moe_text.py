"""Configs and weights of the text part of the Qwen 3.5 mixtures of experts (Qwen3_5MoeForCausalLM in transformers)."""

from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.families.qwen2_moe import EXPERTS, IGNORED, SHARED, SharedExpert
from archlab.families.qwen3_5_text import NO_EFFECT, PUBLISHED, ROPE, WEIGHTS
from archlab.families.qwen3_next import LAYERS, ConvolutionSilu, attention_fields
from archlab.hf.family import Family
from archlab.hf.fields import Key

FAMILY = Family(
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *attention_fields(2),
        ROPE,
        *MIXTURE,
        Key("num_experts", "mlp.experts", 256),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 512),
        SharedExpert(default=512),
        LAYERS,
        ConvolutionSilu(LAYERS),
        Key("tie_word_embeddings", "head.tied", False),
        *PUBLISHED,
    ],
    weights=[*WEIGHTS, *EXPERTS, *SHARED],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    ignored=IGNORED,
    prefix="model.",
    no_effect=TRAINING_ONLY | NO_EFFECT | {"intermediate_size"},  # no layer has a dense MLP
    aliases={"num_local_experts": "num_experts"},
)
