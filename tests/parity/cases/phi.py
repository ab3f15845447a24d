"""Phi."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("phi", "partial", {
        **SMALL, "layer_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.position.fraction=1", "model.norm.kind=rmsnorm", "model.mlp.activation=gelu",
        "model.head.bias=false",
    )),
    Case("phi", "qk-norm-wide-linear", {
        **SMALL, "num_key_value_heads": None, "qk_layernorm": True, "layer_norm_eps": 1e-2, "hidden_act": "relu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0, "partial_rotary_factor": 1.0},
    }, (
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5", "model.position.scaling=none",
        "model.position.fraction=0.5",
    )),
]  # fmt: skip
