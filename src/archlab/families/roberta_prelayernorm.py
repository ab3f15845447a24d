"""Configs and weights of RoBERTa-PreLayerNorm (RobertaPreLayerNormForMaskedLM in transformers): RoBERTa with norms
before the branches and on the embedding.
"""

from dataclasses import replace

from archlab.families.bert import matrices, pre_norms
from archlab.families.camembert import FAMILY as CAMEMBERT
from archlab.families.roberta import FIELDS_OF_SUCCESSORS, HEAD_ROWS, VOCABULARY
from archlab.hf.fields import Always
from archlab.hf.weight_map import linear

PREFIX = "roberta_prelayernorm"
LAYER = f"{PREFIX}.encoder.layer.{{i}}"

FAMILY = replace(
    CAMEMBERT,
    model_type="roberta-prelayernorm",
    architecture="RobertaPreLayerNormForMaskedLM",
    fields=[*FIELDS_OF_SUCCESSORS, VOCABULARY, Always("norm.placement", "pre")],
    weights=[
        *matrices(PREFIX),
        *linear(f"{PREFIX}.embeddings.LayerNorm", "summed.norm"),
        *pre_norms(f"{LAYER}.attention.LayerNorm", f"{LAYER}.intermediate.LayerNorm", f"{PREFIX}.LayerNorm"),
        *HEAD_ROWS,
    ],
    prefix=f"{PREFIX}.",
)
