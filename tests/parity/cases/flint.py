"""Flint."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

CASES = [
    Case("flint", "implied types", {
        **MOE, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 7, "rms_norm_eps": 1e-2,
        "shared_expert_intermediate_size": 20,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.attention.sinks=false", "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-6",
        "model.norm.eps=1e-5", "model.mlp.router.score=softmax", "model.mlp.router.normalise=false",
        "model.mlp.active=2", "model.mlp.shared=null", "model.layers.sliding.attention.window=8",
        "model.layers.full.position=rope", "model.position.theta=1e4",
    )),
    Case("flint", "listed, no shared expert", {
        **MOE, "num_hidden_layers": 4, "sliding_window": 9, "mlp_only_layers": [2], "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 0, "norm_topk_prob": False, "attention_bias": True,
        "tie_word_embeddings": True, "head_dim": 8,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    }, ("model.mlp.router.normalise=true", "model.attention.out_bias=false")),
    Case("flint", "every second layer sparse", {
        **MOE, "head_dim": 8, "sliding_window": 5, "mlp_only_layers": [], "decoder_sparse_step": 2,
        "layer_types": ["sliding_attention"] * 3,
    }, ("model.attention.window=null",)),
]  # fmt: skip
