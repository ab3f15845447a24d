"""ERNIE."""

from tests.parity.cases.bert import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("ernie", "default", {**SMALL, "layer_norm_eps": 1e-2, "task_type_vocab_size": 5}, (
        "model.norm.eps=1e-5", "model.head.transform=null", "model.embedding.norm=false", "model.norm.placement=pre",
    )),
    Case("ernie", "three-segments-untied", {
        **SMALL, "type_vocab_size": 3, "hidden_act": "gelu_new", "tie_word_embeddings": False,
    }, ("model.mlp.activation=gelu", "model.head.transform.activation=gelu", "model.embedding.segments=0")),
]  # fmt: skip
