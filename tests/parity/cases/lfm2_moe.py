"""LFM2, mixtures of experts."""

from typing import Any

from tests.parity.tiny import SMALL, Case

EXPERTS: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 16}

CASES = [
    Case("lfm2_moe", "hybrid", {
        **SMALL, **EXPERTS, "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "num_hidden_layers": 4, "conv_bias": True, "conv_L_cache": 4, "norm_eps": 1e-2, "tie_word_embeddings": False,
        "num_dense_layers": 1, "routed_scaling_factor": 1.7,
    }, (
        "model.layers.recurrent.mixer.bias=false", "model.norm.eps=1e-5", "model.attention.qk_norm=none",
        "model.position.theta=10000.0", "model.mlp.router.normalise=false", "model.mlp.router.factor=1.0",
        "model.mlp.router.score=softmax", "model.mlp.router.correction=null", "model.mlp.active=2",
    )),
    Case("lfm2_moe", "no-bias", {
        **SMALL, **EXPERTS, "layer_types": ["full_attention", "conv", "full_attention"], "use_expert_bias": False,
        "norm_topk_prob": False, "num_dense_layers": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }, ("model.mlp.router.normalise=true", "model.position.theta=10000.0")),
    Case("lfm2_moe", "all-dense", {**SMALL, **EXPERTS, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 5}),
]  # fmt: skip
