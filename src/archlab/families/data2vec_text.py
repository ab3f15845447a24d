"""Configs and weights of the text models of data2vec (Data2VecTextForMaskedLM in transformers): RoBERTa with other
names of tensors.
"""

from dataclasses import replace

from archlab.families.camembert import FAMILY as CAMEMBERT
from archlab.families.roberta import weights

FAMILY = replace(
    CAMEMBERT,
    model_type="data2vec-text",
    architecture="Data2VecTextForMaskedLM",
    weights=weights("data2vec_text"),
    prefix="data2vec_text.",
)
