"""Qwen 3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("qwen3", "upper-layers", {
        **SMALL, "head_dim": 12, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2,
        "rms_norm_eps": 1e-2,
    }, (
        "model.layers.sliding.attention.window=8", "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-6",
        "model.position.order=before_qk_norm",
    )),
    Case("qwen3", "biases", {
        **SMALL, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                            "original_max_position_embeddings": 16},
    }, ("model.attention.out_bias=false", "model.attention.qkv_bias=false", "model.position.scaling=none")),
]  # fmt: skip
