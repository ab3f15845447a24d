"""Configs and weights of Code World Model (CwmForCausalLM in transformers)."""

from archlab.families.apertus import DEFAULT_SCALING
from archlab.families.llama import GATED, SIZES, WEIGHTS, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.rope import ScaledRopeKeys


def first_of_four(_hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: full attention in the first of every four layers, sliding windows in the others."""
    return [SLIDING if i % 4 else FULL for i in range(n_layers)]


FAMILY = Family(
    model_type="cwm",
    architecture="CwmForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        Key("num_key_value_heads", "attention.n_kv_heads", 8),
        Key("head_dim", "attention.head_dim", 128),
        *rms_norm(1e-5),
        *GATED,
        ScaledRopeKeys(theta=1e6, default_scaling={**DEFAULT_SCALING, "factor": 16.0}),
        LayerTypes(first_of_four, window=8192, unused=8192),
        Key("mlp_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({"attention_bias"}),
)
