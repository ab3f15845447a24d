"""Nemotron."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("nemotron", "partial", {
        **SMALL, "head_dim": 12, "norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.norm.unit_offset=false", "model.mlp.activation=relu", "model.position.fraction=1",
        "model.norm.bias=false",
    )),
    Case("nemotron", "biases-tied", {
        **SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "linear", "rope_theta": 50.0, "factor": 4.0, "partial_rotary_factor": 0.25,
        },
    }, ("model.position.scaling=none", "model.position.fraction=0.5")),
]  # fmt: skip
