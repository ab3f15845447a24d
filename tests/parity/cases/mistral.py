"""Mistral."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("mistral", "window", {**SMALL, "head_dim": 12, "sliding_window": 7, "rms_norm_eps": 1e-3}, (
        "model.attention.window=8", "model.attention.window=null", "model.norm.eps=1e-6",
    )),
    Case("mistral", "tied-yarn", {
        **SMALL, "sliding_window": None, "tie_word_embeddings": True, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5,
                            "original_max_position_embeddings": 16, "mscale": 2.0, "mscale_all_dim": 0.5},
    }, ("model.position.scaling=none", "model.position.scaling.attention_factor=null", "model.attention.window=16")),
    Case("mistral", "linear", {
        **SMALL, "num_key_value_heads": 1, "sliding_window": 64,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0},
    }, ("model.position.scaling=none", "model.mlp.activation=gelu")),
]  # fmt: skip
