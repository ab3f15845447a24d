"""Configs and weights of the dense Granite 3 and 4 models (GraniteForCausalLM in transformers)."""

import math

from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.rope import RopeKeys


def divisor(scale: float) -> float:
    """Return a number n for which 1 / n equals `scale` exactly. Prefer an n with at most 15 significant digits."""
    near = 1 / scale
    candidates = (float(f"{near:.15g}"), near, math.nextafter(near, 0), math.nextafter(near, math.inf))
    return next((number for number in candidates if 1 / number == scale), near)


MULTIPLIERS = (
    Key("embedding_multiplier", "embedding.scale", 1.0, from_hf=float),
    Key("attention_multiplier", "attention.scale", 1.0, from_hf=float),
    Key("residual_multiplier", "block.attention_multiplier", 1.0, from_hf=float),
    Key("residual_multiplier", "block.mlp_multiplier", 1.0, from_hf=float),
    Key("logits_scaling", "head.scale", 1.0, from_hf=lambda number: 1 / number, to_hf=divisor),
)

FAMILY = Family(
    model_type="granite",
    architecture="GraniteForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *RMS_NORM,
        *GATED,
        RopeKeys(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        *MULTIPLIERS,
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
