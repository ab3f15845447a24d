"""Configs and weights of Seed-OSS (SeedOssForCausalLM in transformers)."""

from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, kv_heads
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    default_max_seq_len=524288,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128, nullable=True),
        *RMS_NORM,
        *GATED,
        RopeKeys(),
        Key("attention_bias", "attention.qkv_bias", True),
        Key("attention_out_bias", "attention.out_bias", False),
        Key("mlp_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
