"""Granite SWA."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("granite_swa", "thetas, scaled", {
        **SMALL, "num_hidden_layers": 6, "sliding_window": 7, "embedding_multiplier": 3.0, "attention_multiplier": 0.25,
        "residual_multiplier": 0.22, "logits_scaling": 13.0, "rms_norm_eps": 1e-3,
        "layer_rope_theta": [20, 50.0, 0, 20, 0, 20], "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                            "original_max_position_embeddings": 16},
    }, (
        "model.attention.sinks=false", "model.embedding.scale=1.0", "model.attention.scale=null",
        "model.block.attention_multiplier=1.0", "model.block.mlp_multiplier=1.0", "model.head.scale=1.0",
        "model.norm.eps=1e-6", "model.layers.full_0.position.scaling=none", "model.layers.full_0.position.theta=50",
        "model.layers.sliding_0.position.theta=20", "model.layers.sliding_1.position=rope",
        "model.layers.sliding_1.attention.window=8",
    )),
    Case("granite_swa", "one theta, biases", {
        **SMALL, "num_key_value_heads": None, "attention_bias": True, "mlp_bias": True, "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "attention_multiplier": 0.5,
    }, ("model.mlp.bias=false", "model.attention.out_bias=false", "model.position.theta=1e4")),
    Case("granite_swa", "all-full-no-positions", {
        **SMALL, "layer_types": ["full_attention"] * 3, "layer_rope_theta": [0, 0, 0],
    }, ("model.position=rope",)),
]  # fmt: skip
