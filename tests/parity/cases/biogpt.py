"""BioGPT."""

from tests.parity.tiny import SMALL, Case

BASE = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}

CASES = [
    Case("biogpt", "scaled", BASE, (
        "model.embedding.scale=1", "model.mlp.activation=gelu_tanh", "model.norm.eps=1e-2",
        "model.attention.qkv_bias=false",
    )),
    Case("biogpt", "plain-untied", {
        **BASE, "scale_embedding": False, "hidden_act": "gelu_new", "tie_word_embeddings": False, "layer_norm_eps": 0.1,
    }, ("model.embedding.scale=sqrt_d_model", "model.norm.eps=0.1")),
]  # fmt: skip
