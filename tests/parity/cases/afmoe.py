"""Trinity of Arcee."""

from typing import Any

from tests.parity.tiny import SMALL, Case

EXPERTS: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 16}

CASES = [
    Case("afmoe", "scaled, biases", {
        **SMALL, **EXPERTS, "num_hidden_layers": 4, "head_dim": 12, "rms_norm_eps": 1e-2, "num_shared_experts": 3,
        "route_scale": 1.7, "attention_bias": True, "mup_enabled": True, "sliding_window": 7,
        "global_attn_every_n_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.norm.placement=pre", "model.attention.qk_norm=none",
        "model.attention.qk_norm.eps=1e-5", "model.attention.gate=null", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.embedding.scale=1.0", "model.mlp.router.factor=1.0",
        "model.mlp.router.normalise=false", "model.mlp.router.score=softmax", "model.mlp.router.correction=null",
        "model.mlp.active=2", "model.mlp.shared=null", "model.position.theta=1e4",
    )),
    Case("afmoe", "tied, listed types", {
        **SMALL, **EXPERTS, "num_key_value_heads": None, "head_dim": 8, "hidden_act": "gelu", "num_dense_layers": 2,
        "sliding_window": 5, "tie_word_embeddings": True, "num_shared_experts": 1,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }, ("model.mlp.activation=silu", "model.layers.pattern=[sliding_dense, full_dense, full]")),
]  # fmt: skip
