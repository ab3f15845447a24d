"""Aria, the text part."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("aria_text", "biases", {
        **SMALL, "intermediate_size": 16, "moe_num_experts": 5, "moe_topk": 3, "moe_num_shared_experts": 3,
        "rms_norm_eps": 1e-2, "attention_bias": True, "mlp_bias": True, "head_dim": 12,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, (
        "model.norm.eps=1e-6", "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.mlp.shared.bias=false", "model.mlp.shared=null", "model.mlp.active=2",
        "model.mlp.router.normalise=false", "model.position.scaling=none",
    )),
    Case("aria_text", "tied", {
        **SMALL, "num_key_value_heads": None, "intermediate_size": 24, "tie_word_embeddings": True,
        "moe_num_shared_experts": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, ("model.position.theta=1e4",)),
]  # fmt: skip
