"""Configs and weights of PEGASUS (PegasusForConditionalGeneration in transformers)."""

from archlab.families.bart import ALIASES, COPIES, FIELDS, LOGITS_BIAS, NO_EFFECT, weights
from archlab.hf.family import Family
from archlab.hf.fields import Always, Field

SINUSOIDS: list[Field] = [Always("position.kind", "sinusoidal"), Always("position.layout", "halves")]
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

FAMILY = Family(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    fields=[*FIELDS, *SINUSOIDS, Always("head.bias", True)],
    weights=weights("before"),
    position_tables=POSITION_TABLES,
    prefix="model.",
    has_encoder=True,
    copies=COPIES,
    zero_if_absent=(LOGITS_BIAS,),
    no_effect=NO_EFFECT,
    aliases=ALIASES,
)
