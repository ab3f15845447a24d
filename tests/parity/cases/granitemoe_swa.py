"""Granite SWA, a mixture of experts."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("granitemoe_swa", "thetas, scaled, shared", {
        **SMALL, "num_hidden_layers": 6, "sliding_window": 7, "num_local_experts": 5, "num_experts_per_tok": 3,
        "shared_intermediate_size": 20, "embedding_multiplier": 3.0, "attention_multiplier": 0.25,
        "residual_multiplier": 0.22, "logits_scaling": 13.0, "rms_norm_eps": 1e-3,
        "layer_rope_theta": [20, 50.0, 0, 20, 0, 20],
    }, (
        "model.attention.sinks=false", "model.norm.eps=1e-6", "model.mlp.active=2", "model.mlp.shared=null",
        "model.layers.full_0.position.theta=50", "model.layers.sliding_0.position.theta=20",
        "model.layers.sliding_1.position=rope", "model.layers.sliding_1.attention.window=8",
    )),
    Case("granitemoe_swa", "one theta, biases", {
        **SMALL, "attention_bias": True, "sliding_window": 9, "attention_multiplier": 0.5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, ("model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.position.theta=1e4")),
]  # fmt: skip
