"""Configs and weights of Blenderbot (BlenderbotForConditionalGeneration in transformers): PEGASUS with learned
positions.
"""

from dataclasses import replace

from archlab.families.bart import FAMILY as BART
from archlab.families.bart import FIELDS, weights
from archlab.hf.fields import Always, Key

FAMILY = replace(
    BART,
    model_type="blenderbot",
    architecture="BlenderbotForConditionalGeneration",
    fields=[
        *FIELDS,
        Key("vocab_size", "vocab_size", 8008),
        Key("d_model", "d_model", 2560),
        Key("encoder_layers", "encoder.n_layers", 2),
        Key("decoder_layers", "n_layers", 24),
        Key("max_position_embeddings", "max_seq_len", 128),
        Key("decoder_attention_heads", "attention.n_heads", 32),
        Key("encoder_attention_heads", "encoder.attention.n_heads", 32),
        Key("decoder_ffn_dim", "mlp.d_ff", 10240),
        Key("encoder_ffn_dim", "encoder.mlp.d_ff", 10240),
        Always("position.kind", "learned"),
        Always("head.bias", True),
    ],
    weights=weights("before"),
)
