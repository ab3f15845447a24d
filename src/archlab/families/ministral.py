"""Configs and weights of Ministral (MinistralForCausalLM in transformers): Mistral with windows per layer."""

from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, kv_heads
from archlab.families.mistral import all_sliding
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.layer_types import LayerTypes
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="ministral",
    architecture="MinistralForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        *RMS_NORM,
        *GATED,
        RopeKeys(),
        LayerTypes(all_sliding, unused=4096),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
