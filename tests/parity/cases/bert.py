"""BERT."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("bert", "default", {**SMALL, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.head.transform=null", "model.embedding.norm=false", "model.norm.placement=pre",
        "model.attention.visibility=causal",
    )),
    Case("bert", "three-segments-untied", {
        **SMALL, "type_vocab_size": 3, "hidden_act": "gelu_new", "tie_word_embeddings": False,
    }, ("model.mlp.activation=gelu", "model.head.transform.activation=gelu", "model.embedding.segments=0")),
]  # fmt: skip
