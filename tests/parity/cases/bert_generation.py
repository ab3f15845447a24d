"""BertGeneration."""

from tests.parity.cases.bert import SMALL
from tests.parity.tiny import Case

IDS = {"bos_token_id": 1, "eos_token_id": 2}

CASES = [
    Case("bert-generation", "causal", {**SMALL, **IDS, "is_decoder": True, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.embedding.norm=false", "model.norm.placement=pre", "model.head.bias=false",
        "model.attention.visibility=two_sided",
    )),
    Case("bert-generation", "two-sided-untied", {
        **SMALL, **IDS, "hidden_act": "gelu_new", "tie_word_embeddings": False,
    }, ("model.mlp.activation=gelu", "model.attention.visibility=causal")),
]  # fmt: skip
