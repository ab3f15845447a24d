"""Configs and weights of mT5 (MT5ForConditionalGeneration in transformers)."""

from archlab.families.t5 import ALIASES, BUFFERS, COPIES, NO_EFFECT, SHARED_BIAS, WEIGHTS, fields
from archlab.hf.family import Family
from archlab.hf.fields import Always

FAMILY = Family(
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    fields=[
        *fields(d_ff=1024, n_layers=8, n_heads=6, feed_forward="gated-gelu"),
        Always("head.scale", 1.0),  # unlike T5, even if the head is tied
    ],
    weights=[*WEIGHTS, *SHARED_BIAS],
    buffers=BUFFERS,
    has_encoder=True,
    copies=COPIES,
    tied_by_weights=True,
    no_effect=NO_EFFECT,
    aliases=ALIASES,
)
