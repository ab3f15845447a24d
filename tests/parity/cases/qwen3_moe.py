"""Qwen 3, mixtures of experts."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

CASES = [
    Case("qwen3_moe", "window-dense", {
        **MOE, "head_dim": 12, "use_sliding_window": True, "sliding_window": 7, "mlp_only_layers": [0, 2],
        "num_hidden_layers": 4, "norm_topk_prob": True, "rms_norm_eps": 1e-2,
    }, (
        "model.attention.window=8", "model.mlp.router.normalise=false", "model.attention.qk_norm=none",
        "model.attention.qk_norm.eps=1e-6", "model.mlp.active=2",
    )),
    Case("qwen3_moe", "biases", {
        **MOE, "attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                            "original_max_position_embeddings": 16},
    }, ("model.attention.out_bias=false", "model.mlp.router.normalise=true", "model.position.scaling=none")),
]  # fmt: skip
