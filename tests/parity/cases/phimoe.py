"""Phi 3.5 MoE."""

from tests.parity.tiny import SMALL, Case

LONG = {"short_factor": [1.0, 1.3, 1.7, 2.5], "long_factor": [1.0, 2.0, 5.0, 9.0]}

CASES = [
    Case("phimoe", "longrope", {
        **SMALL, "num_local_experts": 5, "router_jitter_noise": 0.5, "rms_norm_eps": 1e-2, "attention_bias": True,
        "lm_head_bias": True, "sliding_window": 7,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 16,
                            "short_mscale": 1.3, "long_mscale": 1.3, **LONG},
    }, (
        "model.mlp.active=1", "model.mlp.router.sparsemixer=0.01", "model.mlp.router.sparsemixer=null", "model.mlp.router.normalise=true",
        "model.norm.eps=1e-5", "model.norm.kind=rmsnorm", "model.attention.window=8",
        "model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.head.bias=false",
        "model.position.scaling=none", "model.position.scaling.attention_factor=1.0",
        "model.position.scaling.long_factor=[1.0,2.0,5.0,9.0]",
    )),
    Case("phimoe", "longrope-short", {
        **SMALL, "num_local_experts": 4, "router_jitter_noise": 0.2, "num_key_value_heads": 4, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 44,
                            "short_mscale": 1.3, "long_mscale": 2.0, **LONG},
    }, ("model.position.scaling.attention_factor=2.0", "model.mlp.activation=silu")),
    Case("phimoe", "longrope-two-factors", {
        **SMALL, "num_local_experts": 4,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 16,
                            "short_mscale": 1.3, "long_mscale": 2.0, **LONG},
    }, ("model.position.scaling.long_attention_factor=null",)),
    Case("phimoe", "unsaid", {**SMALL, "tie_word_embeddings": True, "num_local_experts": 6}, (
        "model.position.theta=10000.0", "model.mlp.router.sparsemixer=0.5",
    )),
]  # fmt: skip
