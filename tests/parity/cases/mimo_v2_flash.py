"""MiMo-V2-Flash."""

from tests.parity.tiny import SMALL, Case

MOE = {
    **SMALL, "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 12,
    "v_head_dim": 10,
}  # fmt: skip

CASES = [
    Case("mimo_v2_flash", "published keys", {
        **MOE, "num_hidden_layers": 4, "sliding_window": 6, "sliding_window_size": 6, "rms_norm_eps": 1e-2,
        "n_group": 3, "topk_group": 2, "routed_scaling_factor": None, "attention_bias": True,
    }, (
        "model.block.attention_multiplier=1.0", "model.layers.sliding.attention.window=6",
        "model.layers.sliding.attention.sinks=false", "model.layers.sliding.position.theta=5e6",
        "model.layers.sliding.position.fraction=0.5", "model.norm.eps=1e-5", "model.attention.qkv_bias=false",
        "model.mlp.router.groups=null", "model.mlp.router.normalise=false", "model.mlp.router.score=softmax",
        "model.mlp.router.correction=null", "model.mlp.active=2",
    )),
    Case("mimo_v2_flash", "listed", {
        **MOE, "sliding_window": 5, "num_key_value_heads": 1, "attention_value_scale": None, "norm_topk_prob": False,
        "routed_scaling_factor": 2.5, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0, "partial_rotary_factor": 0.85},
            "full_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
        },
    }, (
        "model.layers.sliding.position.fraction=0.5", "model.layers.full_dense.position.fraction=0.5",
        "model.layers.full_dense.position.scaling=none", "model.mlp.router.factor=1.0",
        "model.mlp.router.normalise=true",
    )),
    Case("mimo_v2_flash", "all sliding, yarn", {
        **MOE, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3, "mlp_layer_types": ["dense"] * 3,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "beta_fast": 2.0,
                                  "beta_slow": 0.5, "original_max_position_embeddings": 16,
                                  "partial_rotary_factor": 0.5},
        },
    }, ("model.attention.window=null", "model.position.scaling=none")),
    Case("mimo_v2_flash", "all full", {
        **MOE, "layer_types": ["full_attention"] * 3, "attention_value_scale": 1.5,
    }, ("model.block.attention_multiplier=1.0", "model.position.theta=100.0")),
]  # fmt: skip
