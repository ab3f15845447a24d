"""Configs and weights of ERNIE (ErnieForMaskedLM in transformers): BERT with other names of tensors."""

from dataclasses import replace

from archlab.families.bert import FAMILY as BERT
from archlab.families.bert import weights, with_gamma_and_beta
from archlab.hf.fields import Only

FAMILY = replace(
    BERT,
    model_type="ernie",
    architecture="ErnieForMaskedLM",
    other_architectures=("ErnieForPreTraining",),
    fields=[*BERT.fields, Only("use_task_id", False, "false, because archlab does not add vectors of tasks")],
    weights=weights("ernie"),
    alternatives=with_gamma_and_beta(weights("ernie")),
    prefix="ernie.",
    no_effect=BERT.no_effect | {"task_type_vocab_size"},
)
