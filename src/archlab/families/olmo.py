"""Configs and weights of OLMo 1 (OlmoForCausalLM in transformers)."""

from archlab.families.llama import GATED, SIZES, WEIGHTS, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="olmo",
    architecture="OlmoForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        Always("norm.kind", "layernorm"),
        Always("norm.weight", False),
        Always("norm.bias", False),
        Always("norm.eps", 1e-5),
        *GATED,
        RopeKeys(),
        *attention_biases(),
        Key("clip_qkv", "attention.clip_qkv", None),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
