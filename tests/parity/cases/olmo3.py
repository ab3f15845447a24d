"""OLMo 3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("olmo3", "yarn", {
        **SMALL, "num_hidden_layers": 5, "sliding_window": 7, "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "attention_factor": 1.4,
                               "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5},
        },
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.pattern=[sliding, full, sliding, full, sliding]",
        "model.norm.eps=1e-5", "model.attention.qk_norm=none", "model.layers.full.position.scaling=none",
        "model.layers.full.position.theta=50.0", "model.layers.sliding.position.theta=100.0",
    )),
    Case("olmo3", "listed", {
        **SMALL, "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 9,
        "attention_bias": True, "tie_word_embeddings": True,
    }, ("model.layers.pattern=[sliding, sliding, full]", "model.layers.full.position.theta=10000.0")),
    Case("olmo3", "full", {**SMALL, "layer_types": ["full_attention"] * 3}, ("model.attention.window=8",)),
]  # fmt: skip
