"""Gemma 1."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("gemma", "mqa", {**SMALL, "num_key_value_heads": 1, "head_dim": 12, "rms_norm_eps": 1e-3}, (
        "model.embedding={scale: 1, round_scale: false}", "model.norm.unit_offset=false", "model.norm.eps=1e-6", "model.mlp.activation=gelu",
    )),
    Case("gemma", "biases-untied-linear", {
        **SMALL, "head_dim": 8, "attention_bias": True, "tie_word_embeddings": False, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    }, ("model.position.scaling=none", "model.mlp.activation=gelu")),
]  # fmt: skip
