"""Laguna."""

from tests.parity.tiny import SMALL, Case

MOE = {
    **SMALL, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 12,
    "shared_expert_intermediate_size": 20,
}  # fmt: skip

CASES = [
    Case("laguna", "as published", {
        **MOE, "num_hidden_layers": 4, "sliding_window": 7, "rms_norm_eps": 1e-2, "moe_routed_scaling_factor": 2.5,
        "num_attention_heads_per_layer": [4, 6, 6, 4], "gating": "per-head",
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "attention_factor": 1.4,
                               "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5,
                               "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    }, (
        "model.attention.gate=null", "model.attention.gate.activation=sigmoid", "model.attention.qk_norm=none",
        "model.norm.eps=1e-6", "model.attention.qk_norm.eps=1e-6", "model.layers.sliding.attention.window=8",
        "model.layers.full.position.fraction=1.0", "model.layers.full.position.scaling=none",
        "model.layers.sliding.position.theta=100.0", "model.mlp.router.factor=1.0", "model.mlp.router.score=softmax",
        "model.mlp.router.normalise=false", "model.mlp.router.correction=null", "model.mlp.shared=null", "model.mlp.active=2",
    )),
    Case("laguna", "heads of single layers", {
        **MOE, "num_attention_heads_per_layer": [2, 4, 6], "gating": "per-element", "attention_bias": True,
        "tie_word_embeddings": True, "sliding_window": 9, "mlp_layer_types": ["sparse", "dense", "sparse"],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }, (
        "model.layers.full_dense.position.fraction=1.0", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.attention.gate.activation=sigmoid",
    )),
    Case("laguna", "all full, no shared expert", {
        **MOE, "shared_expert_intermediate_size": 0, "num_attention_heads_per_layer": [2] * 3,
    }, ("model.position.fraction=1.0", "model.position.theta=1e4", "model.attention.gate.activation=sigmoid")),
]  # fmt: skip
