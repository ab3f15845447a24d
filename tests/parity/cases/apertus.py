"""Apertus."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("apertus", "xielu", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-2, "attention_bias": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }, (
        "model.mlp.activation=relu_squared", "model.position.scaling=none", "model.attention.qk_norm=none",
        "model.norm.eps=1e-5", "model.attention.qk_norm.eps=1e-5", "model.attention.out_bias=false",
        "model.position.order=before_qk_norm",
    )),
    Case("apertus", "tied", {
        **SMALL, "num_key_value_heads": None, "hidden_act": "silu", "tie_word_embeddings": True,
        "max_position_embeddings": 16384,
    }, ("model.mlp.activation=gelu", "model.position.theta=10000.0")),
]  # fmt: skip
