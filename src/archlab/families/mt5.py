"""Configs and weights of mT5 (MT5ForConditionalGeneration in transformers)."""

from dataclasses import replace

from archlab.families.t5 import FAMILY as T5
from archlab.families.t5 import fields
from archlab.hf.fields import Always

FAMILY = replace(
    T5,
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    fields=[
        *fields(d_ff=1024, n_layers=8, n_heads=6, feed_forward="gated-gelu"),
        Always("head.scale", 1.0),  # unlike T5, even if the head is tied
    ],
)
