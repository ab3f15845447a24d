"""Megatron-BERT."""

from tests.parity.cases.bert import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("megatron-bert", "default", {**SMALL, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.head.transform=null", "model.embedding.norm=sum", "model.norm.placement=post",
        "model.attention.visibility=causal",
    )),
    Case("megatron-bert", "three-segments-untied", {
        **SMALL, "type_vocab_size": 3, "hidden_act": "gelu_new", "tie_word_embeddings": False,
    }, ("model.mlp.activation=gelu", "model.head.transform.activation=gelu", "model.embedding.segments=0")),
]  # fmt: skip
