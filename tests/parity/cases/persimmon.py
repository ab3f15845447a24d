"""Persimmon."""

from tests.parity.tiny import SMALL, Case

BASE = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}

CASES = [
    Case("persimmon", "qk-norm", {
        **BASE, "layer_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5",
        "model.attention.qk_norm.bias=false", "model.mlp.activation=relu", "model.position.fraction=1",
        "model.norm.kind=rmsnorm",
    )),
    Case("persimmon", "plain-tied", {
        **BASE, "qk_layernorm": False, "tie_word_embeddings": True, "hidden_act": "gelu_new",
        "rope_parameters": {
            "rope_type": "linear", "rope_theta": 50.0, "factor": 4.0, "partial_rotary_factor": 1.0,
        },
    }, ("model.position.scaling=none", "model.mlp.activation=gelu")),
]  # fmt: skip
