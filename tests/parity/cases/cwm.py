"""Code World Model."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("cwm", "unsaid", {
        **SMALL, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 7, "rms_norm_eps": 1e-2, "mlp_bias": True,
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.pattern=[sliding, full]", "model.norm.eps=1e-5",
        "model.mlp.bias=false", "model.position.theta=10000.0",
    )),
    Case("cwm", "listed-scaled-tied", {
        **SMALL, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": 9, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    }, ("model.position.scaling=none", "model.layers.pattern=[full, full, sliding]")),
    Case("cwm", "full", {**SMALL, "layer_types": ["full_attention"] * 3, "rope_parameters": {
        "rope_type": "linear", "rope_theta": 100.0, "factor": 3.0,
    }}, ("model.attention.window=8", "model.position.scaling=none")),
]  # fmt: skip
