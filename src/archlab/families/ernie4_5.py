"""Configs and weights of the dense ERNIE 4.5 models (Ernie4_5ForCausalLM in transformers)."""

from archlab.families.llama import GATED, SIZES, WEIGHTS, kv_heads, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(2),
        Key("head_dim", "attention.head_dim", 128, nullable=True),
        *rms_norm(1e-5),
        *GATED,
        RopeKeys(theta=5e5, pairing="interleaved"),
        Key("use_bias", "attention.qkv_bias", False),
        Key("use_bias", "attention.out_bias", False),
        Key("use_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
