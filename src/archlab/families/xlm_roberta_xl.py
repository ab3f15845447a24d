"""Configs and weights of XLM-RoBERTa-XL (XLMRobertaXLForMaskedLM in transformers): RoBERTa with norms before the
branches.
"""

from dataclasses import replace

from archlab.families.bert import PRE_NORM, matrices, pre_norms
from archlab.families.camembert import FAMILY as CAMEMBERT
from archlab.families.roberta import FIELDS_OF_SUCCESSORS, HEAD_ROWS, PositionsAfterPadding
from archlab.hf.fields import Key

LAYER = "roberta.encoder.layer.{i}"

FAMILY = replace(
    CAMEMBERT,
    model_type="xlm-roberta-xl",
    architecture="XLMRobertaXLForMaskedLM",
    fields=[
        *FIELDS_OF_SUCCESSORS,
        *PRE_NORM,
        Key("vocab_size", "vocab_size", 250880),
        Key("hidden_size", "d_model", 2560),
        Key("num_hidden_layers", "n_layers", 36),
        Key("num_attention_heads", "attention.n_heads", 32),
        Key("intermediate_size", "mlp.d_ff", 10240),
        Key("type_vocab_size", "embedding.segments", 1),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        PositionsAfterPadding(rows=514),
    ],
    weights=[
        *matrices("roberta"),
        *pre_norms(f"{LAYER}.attention.self_attn_layer_norm", f"{LAYER}.LayerNorm", "roberta.encoder.LayerNorm"),
        *HEAD_ROWS,
    ],
)
