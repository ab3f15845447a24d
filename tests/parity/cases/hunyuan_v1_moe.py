"""Hunyuan A13B."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("hunyuan_v1_moe", "alpha, biases", {
        **SMALL, "num_experts": 6, "moe_topk": 3, "head_dim": 12, "rms_norm_eps": 1e-2, "attention_bias": True,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 1.0, "alpha": 7.0},
    }, (
        "model.norm.eps=1e-5", "model.attention.qk_norm.eps=1e-5", "model.position.order=after_qk_norm",
        "model.position.theta=50.0", "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.mlp.router.normalise=false", "model.mlp.shared=null", "model.mlp.active=2",
    )),
    Case("hunyuan_v1_moe", "numbers per layer, tied", {
        **SMALL, "num_key_value_heads": None, "head_dim": 8, "num_experts": 5, "moe_topk": [3, 1, 1],
        "tie_word_embeddings": True, "hidden_act": "gelu",
    }, ("model.layers.pattern=[top_3, top_1]", "model.mlp.activation=silu")),
    Case("hunyuan_v1_moe", "one number in a list", {
        **SMALL, "head_dim": 8, "num_experts": 5, "moe_topk": [2, 2, 2],
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, ("model.position.scaling=none",)),
]  # fmt: skip
