"""OLMo 1."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("olmo", "clip", {**SMALL, "clip_qkv": 0.7, "attention_bias": True}, (
        "model.attention.clip_qkv=null", "model.norm.eps=1e-2", "model.attention.out_bias=false",
    )),
    Case("olmo", "tied", {
        **SMALL, "num_key_value_heads": None, "tie_word_embeddings": True, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0},
    }, ("model.position.scaling=none", "model.mlp.activation=gelu_tanh")),
]  # fmt: skip
