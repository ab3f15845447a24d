"""Configs and weights of mBART and mBART-50 (MBartForConditionalGeneration in transformers)."""

from archlab.families.bart import ALIASES, COPIES, FIELDS, LEARNED_POSITIONS, LOGITS_BIAS, NO_EFFECT, weights
from archlab.hf.family import Family
from archlab.hf.fields import Always

FAMILY = Family(
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    fields=[*FIELDS, *LEARNED_POSITIONS, Always("head.bias", True)],
    weights=weights("before"),
    prefix="model.",
    has_encoder=True,
    copies=COPIES,
    zero_if_absent=(LOGITS_BIAS,),
    no_effect=NO_EFFECT,
    aliases=ALIASES,
)
