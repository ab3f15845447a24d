"""Configs and weights of RoFormer (RoFormerForMaskedLM in transformers): BERT with RoPE."""

from dataclasses import replace

from archlab.families.bert import FAMILY as BERT
from archlab.families.bert import HEAD_ROWS, encoder
from archlab.families.electra import NarrowSum
from archlab.hf.fields import Always, Key, Only
from archlab.hf.weight_map import linear

FAMILY = replace(
    BERT,
    model_type="roformer",
    architecture="RoFormerForMaskedLM",
    other_architectures=(),
    fields=[
        *BERT.fields,
        Key("vocab_size", "vocab_size", 50000),
        Key("max_position_embeddings", "max_seq_len", 1536),
        Always("position.kind", "rope"),
        Always("position.pairing", "interleaved"),
        NarrowSum(),
        Only("rotary_value", False, "false, because archlab rotates queries and keys only"),
    ],
    weights=[*encoder("roformer"), *linear("roformer.embeddings_project", "summed.widen"), *HEAD_ROWS],
    alternatives=(),
    prefix="roformer.",
    position_tables=("roformer.encoder.embed_positions.weight",),
)
