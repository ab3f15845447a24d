"""ELECTRA's generators."""

from tests.parity.cases.bert import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("electra", "narrow", {**SMALL, "embedding_size": 20, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.head.transform.activation=relu", "model.head.bias=false",
    )),
    Case("electra", "full-width-silu", {
        **SMALL, "embedding_size": 32, "hidden_act": "silu", "tie_word_embeddings": False,
    }, ("model.mlp.activation=gelu",)),
]  # fmt: skip
