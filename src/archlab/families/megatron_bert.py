"""Configs and weights of Megatron-BERT (MegatronBertForMaskedLM in transformers): BERT with norms before the
branches.
"""

from dataclasses import replace

from archlab.families.bert import FAMILY as BERT
from archlab.families.bert import HEAD_ROWS, PRE_NORM, matrices, pre_norms
from archlab.hf.fields import Key

LAYER = "bert.encoder.layer.{i}"

FAMILY = replace(
    BERT,
    model_type="megatron-bert",
    architecture="MegatronBertForMaskedLM",
    other_architectures=("MegatronBertForPreTraining",),
    fields=[
        *BERT.fields,
        *PRE_NORM,
        Key("vocab_size", "vocab_size", 29056),
        Key("hidden_size", "d_model", 1024),
        Key("num_hidden_layers", "n_layers", 24),
        Key("num_attention_heads", "attention.n_heads", 16),
        Key("intermediate_size", "mlp.d_ff", 4096),
    ],
    weights=[
        *matrices("bert"),
        *pre_norms(f"{LAYER}.attention.ln", f"{LAYER}.ln", "bert.encoder.ln"),
        *HEAD_ROWS,
    ],
    alternatives=(),
)
