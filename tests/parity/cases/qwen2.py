"""Qwen 2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("qwen2", "upper-layers", {
        **SMALL, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "rms_norm_eps": 1e-3,
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.pattern=[full, full, sliding]", "model.norm.eps=1e-6",
        "model.attention.qkv_bias=false",
    )),
    Case("qwen2", "switched-off", {
        **SMALL, "use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                            "original_max_position_embeddings": 16, "beta_fast": 1.7,
                            "beta_slow": 0.6, "truncate": False},
    }, ("model.attention.window=7", "model.position.scaling.truncate=true", "model.position.scaling=none")),
    Case("qwen2", "all-slide", {
        **SMALL, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0,
    }, ("model.attention.window=null",)),
]  # fmt: skip
