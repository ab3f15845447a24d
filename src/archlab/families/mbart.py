"""Configs and weights of mBART and mBART-50 (MBartForConditionalGeneration in transformers)."""

from dataclasses import replace

from archlab.families.bart import FAMILY as BART
from archlab.families.bart import FIELDS, LEARNED_POSITIONS, weights
from archlab.hf.fields import Always

FAMILY = replace(
    BART,
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    fields=[*FIELDS, *LEARNED_POSITIONS, Always("head.bias", True)],
    weights=weights("before"),
)
