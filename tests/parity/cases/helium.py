"""Helium."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("helium", "biases-tied", {
        **SMALL, "head_dim": 8, "rms_norm_eps": 1e-2, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.position.pairing=half", "model.attention.qkv_bias=false", "model.mlp.bias=false",
    )),
    Case("helium", "linear", {
        **SMALL, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0},
    }, ("model.position.scaling=none", "model.mlp.activation=silu")),
    Case("helium", "unsaid", {**SMALL, "head_dim": 8}, ("model.position.theta=100.0",)),
]  # fmt: skip
