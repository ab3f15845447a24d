"""Configs and weights of CamemBERT (CamembertForMaskedLM in transformers): RoBERTa with another default."""

from dataclasses import replace

from archlab.families.roberta import FAMILY as ROBERTA
from archlab.families.roberta import FIELDS_OF_SUCCESSORS

FAMILY = replace(
    ROBERTA,
    model_type="camembert",
    architecture="CamembertForMaskedLM",
    fields=FIELDS_OF_SUCCESSORS,
    other_architectures=(),
    other_model_types=(),
)
