"""Configs and weights of PLBART (PLBartForConditionalGeneration in transformers): BART with other defaults."""

from dataclasses import replace

from archlab.families.bart import FAMILY as BART
from archlab.families.xglm import SCALED_EMBEDDING
from archlab.hf.fields import Key

FAMILY = replace(
    BART,
    model_type="plbart",
    architecture="PLBartForConditionalGeneration",
    fields=[
        *BART.fields,
        Key("vocab_size", "vocab_size", 50005),
        Key("d_model", "d_model", 768),
        Key("encoder_layers", "encoder.n_layers", 6),
        Key("decoder_layers", "n_layers", 6),
        Key("decoder_attention_heads", "attention.n_heads", 12),
        Key("encoder_attention_heads", "encoder.attention.n_heads", 12),
        Key("decoder_ffn_dim", "mlp.d_ff", 3072),
        Key("encoder_ffn_dim", "encoder.mlp.d_ff", 3072),
        SCALED_EMBEDDING,
    ],
)
