"""Configs and weights of BertGeneration (BertGenerationDecoder in transformers): BERT without segments and without a
dense layer in the head. A key says whether attention is causal.
"""

from archlab.families.bert import WITHOUT_SEGMENTS, encoder, head_bias
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.weight_map import Row

FAMILY = Family(
    model_type="bert-generation",
    architecture="BertGenerationDecoder",
    fields=[
        *WITHOUT_SEGMENTS,
        Key("vocab_size", "vocab_size", 50358),
        Key("hidden_size", "d_model", 1024),
        Key("num_hidden_layers", "n_layers", 24),
        Key("num_attention_heads", "attention.n_heads", 16),
        Key("intermediate_size", "mlp.d_ff", 4096),
        Key(
            "is_decoder", "attention.visibility", False,
            lambda on: "causal" if on else "two_sided", lambda visibility: visibility == "causal",
        ),
    ],
    weights=[
        *encoder("bert"),
        Row("lm_head.decoder.weight", "head.weight"),
        *head_bias("lm_head"),
    ],
    ignored=("embeddings.position_ids", "lm_head.bias", "lm_head.decoder.bias"),
    prefix="bert.",
)  # fmt: skip
