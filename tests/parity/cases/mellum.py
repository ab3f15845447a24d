"""Mellum 2."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

CASES = [
    Case("mellum", "windows, some dense", {
        **MOE, "num_hidden_layers": 4, "head_dim": 12, "sliding_window": 7, "rms_norm_eps": 1e-2,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "attention_factor": 1.4,
                               "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5},
        },
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.full.position.scaling=none",
        "model.layers.sliding.position.theta=100", "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-6",
        "model.norm.eps=1e-5", "model.mlp.router.normalise=false", "model.mlp.active=2",
    )),
    Case("mellum", "as the class has it", {
        **MOE, "head_dim": 8, "norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": True,
    }, ("model.attention.out_bias=false", "model.mlp.router.normalise=true", "model.position.theta=100.0")),
    Case("mellum", "all-sliding", {
        **MOE, "head_dim": 8, "sliding_window": 9, "layer_types": ["sliding_attention"] * 3,
    }, ("model.attention.window=null", "model.position.theta=5e5")),
]  # fmt: skip
