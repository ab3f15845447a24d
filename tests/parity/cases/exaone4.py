"""EXAONE 4."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("exaone4", "hybrid", {
        **SMALL, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 7, "sliding_window_pattern": 4,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.full.position.kind=rope", "model.norm.eps=1e-5",
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5", "model.layers.pattern=[sliding, full]",
        "model.position.order=before_qk_norm",
    )),
    Case("exaone4", "no-window", {
        **SMALL, "sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True,
    }, ("model.position=none", "model.position.theta=100.0")),
    Case("exaone4", "never-turns", {
        **SMALL, "num_key_value_heads": 4, "sliding_window": 7, "layer_types": ["full_attention"] * 3,
    }, ("model.position=rope",)),
]  # fmt: skip
