"""RoFormer."""

from tests.parity.cases.bert import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("roformer", "default", {**SMALL, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.head.transform=null", "model.embedding.norm=false", "model.norm.placement=pre",
        "model.position.pairing=half", "model.position.theta=100",
    )),
    Case("roformer", "narrow-untied", {
        **SMALL, "embedding_size": 20, "type_vocab_size": 3, "hidden_act": "gelu_new", "tie_word_embeddings": False,
    }, ("model.mlp.activation=gelu", "model.head.transform.activation=gelu")),
]  # fmt: skip
