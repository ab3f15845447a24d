"""Configs and weights of PEGASUS (PegasusForConditionalGeneration in transformers)."""

from dataclasses import replace

from archlab.families.bart import FAMILY as BART
from archlab.families.bart import FIELDS, weights
from archlab.hf.fields import Always, Field

SINUSOIDS: list[Field] = [Always("position.kind", "sinusoidal"), Always("position.layout", "halves")]
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

FAMILY = replace(
    BART,
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    fields=[*FIELDS, *SINUSOIDS, Always("head.bias", True)],
    weights=weights("before"),
    position_tables=POSITION_TABLES,
)
