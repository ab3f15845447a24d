"""Configs and weights of PEGASUS (PegasusForConditionalGeneration in transformers)."""

from archlab.families.bart import ALIASES, COPIES, FIELDS, LOGITS_BIAS, NO_EFFECT, weights
from archlab.hf.family import Family
from archlab.hf.fields import Always, Field

SINUSOIDS: list[Field] = [Always("position.kind", "sinusoidal"), Always("position.layout", "halves")]

FAMILY = Family(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    fields=[*FIELDS, *SINUSOIDS, Always("head.bias", True)],
    weights=weights("before"),
    buffers=("embed_positions.weight",),
    prefix="model.",
    has_encoder=True,
    copies=COPIES,
    zero_if_absent=(LOGITS_BIAS,),
    no_effect=NO_EFFECT,
    aliases=ALIASES,
)
