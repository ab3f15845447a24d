"""Jais 2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("jais2", "biases", {**SMALL, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.norm.kind=rmsnorm", "model.mlp.activation=relu",
        "model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.mlp.bias=false",
    )),
    Case("jais2", "no-bias-tied", {
        **SMALL, "num_key_value_heads": 1, "head_dim": 12, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, ("model.position.scaling=none", "model.position.theta=1e4", "model.mlp.activation=relu_squared")),
]  # fmt: skip
