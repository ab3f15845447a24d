"""Gemma 4."""

from tests.parity.tiny import SMALL, Case

TEXT = {**SMALL, "hidden_size_per_layer_input": 0, "head_dim": 8, "global_head_dim": 12}
MIXED = {**TEXT, "enable_moe_block": True}

CASES = [
    Case("gemma4_text", "keys as values", {
        **TEXT, "num_hidden_layers": 4, "sliding_window": 7, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "rms_norm_eps": 1e-2, "final_logit_softcapping": 2.0, "use_bidirectional_attention": "vision",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.4},
        },
    }, (
        "model.embedding={scale: 1, round_scale: false}", "model.norm.placement=pre", "model.norm.eps=1e-6",
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-6", "model.attention.scale=null",
        "model.attention.v_norm=null", "model.attention.v_norm.eps=1e-6", "model.block.stream_scale=false",
        "model.head.softcap=null", "model.layers.full.position.scaling=none", "model.layers.full.position.theta=20",
        "model.layers.sliding.attention.window=8", "model.layers.sliding.position.theta=300",
    )),
    Case("gemma4_text", "implied types, biases, untied", {
        **TEXT, "num_hidden_layers": 7, "sliding_window": 5, "attention_bias": True, "tie_word_embeddings": False,
        "hidden_activation": "silu", "num_global_key_value_heads": 1,
    }, (
        "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.layers.full.position.scaling.turning=1",
    )),
    Case("gemma4_text", "all full", {
        **TEXT, "num_key_value_heads": 1, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
        "layer_types": ["full_attention"] * 3,
        "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}},
    }, ("model.position.scaling=none", "model.attention.v_norm=null")),
    Case("gemma4_text", "equal heads in all layers", {
        **TEXT, "global_head_dim": 8, "sliding_window": 7, "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }),
    Case("gemma4_text", "experts", {
        **MIXED, "sliding_window": 7, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "rms_norm_eps": 1e-2,
        "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 24,
    }, (
        "model.mlp.own_norms=false", "model.mlp.active=2", "model.norm.eps=1e-6",
        "model.mlp.router.expert_scale=false", "model.mlp.router.normalise=false", "model.mlp.activation=silu",
    )),
    Case("gemma4_text", "one expert of four, values of their own", {
        **MIXED, "num_experts": 4, "top_k_experts": 1, "moe_intermediate_size": 16, "hidden_activation": "silu",
        "tie_word_embeddings": False, "attention_bias": True,
    }),
]  # fmt: skip
