"""Command A+."""

from typing import Any

from tests.parity.tiny import SMALL, Case

EXPERTS: dict[str, Any] = {"intermediate_size": 16, "num_experts": 5, "num_experts_per_tok": 3, "head_dim": 8}

CASES = [
    Case("cohere2_moe", "sigmoid, mean with shared experts", {
        **SMALL, **EXPERTS, "num_hidden_layers": 5, "sliding_window": 7, "sliding_window_pattern": 2,
        "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 24, "layer_norm_eps": 1e-2, "logit_scale": 0.3,
        "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "num_shared_experts": 2, "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.norm.kind=rmsnorm", "model.head.scale=1", "model.mlp.router.factor=1.0",
        "model.mlp.router.score=softmax", "model.mlp.router.normalise=true", "model.mlp.active=2",
        "model.mlp.shared=null", "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.layers.full.position=rope", "model.layers.full_dense.position=none", "model.block.parallel=none",
    )),
    Case("cohere2_moe", "RMS norms, sum with a shared expert", {
        **SMALL, **EXPERTS, "sliding_window": 5, "rms_norm_eps": 1e-2, "hidden_act": "gelu", "num_shared_experts": 1,
        "shared_expert_combination_strategy": "sum", "tie_word_embeddings": False, "norm_topk_prob": False,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "dense", "sparse"], "prefix_dense_sliding_window_pattern": 3,
    }, ("model.norm.eps=1e-5", "model.layers.full_dense.position=rope", "model.mlp.router.normalise=false")),
    Case("cohere2_moe", "sigmoid, sums of 1", {
        **SMALL, **EXPERTS, "expert_selection_fn": "sigmoid", "layer_types": ["full_attention"] * 3,
        "first_k_dense_replace": 1,
    }, ("model.layers.dense.position=none", "model.mlp.router.normalise=false")),
    Case("cohere2_moe", "all-dense", {
        **SMALL, **EXPERTS, "layer_types": ["full_attention"] * 3, "first_k_dense_replace": 3,
    }, ("model.position=none",)),
]  # fmt: skip
