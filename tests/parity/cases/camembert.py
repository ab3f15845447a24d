"""CamemBERT."""

from tests.parity.cases.bert import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("camembert", "default", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.embedding.segments=0", "model.head.transform.norm=false",
    )),
    Case("camembert", "padding-0-relu", {**SMALL, "hidden_act": "relu", "tie_word_embeddings": False}, (
        "model.head.transform.activation=relu",
    )),
]  # fmt: skip
