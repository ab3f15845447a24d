"""Gemma 3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("gemma3_text", "pattern", {
        **SMALL, "num_hidden_layers": 4, "head_dim": 12, "sliding_window": 7, "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 5, "rms_norm_eps": 1e-3,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
        },
    }, (
        "model.embedding={scale: 1, round_scale: false}", "model.norm.placement=pre", "model.attention.qk_norm.unit_offset=false",
        "model.attention.qk_norm=none", "model.attention.scale=null", "model.layers.full.position.scaling=none",
        "model.layers.sliding.position.theta=300", "model.layers.pattern=[sliding, full]",
    )),
    Case("gemma3_text", "cap-biases-untied", {
        **SMALL, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 5, "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": 1.0, "attention_bias": True, "tie_word_embeddings": False,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "hidden_activation": "silu",
    }, ("model.head.softcap=null", "model.attention.qk_norm=none", "model.layers.sliding.attention.window=6")),
    Case("gemma3_text", "all-sliding", {
        **SMALL, "head_dim": 8, "sliding_window": 9, "layer_types": ["sliding_attention"] * 3,
        "rope_parameters": {"sliding_attention": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}},
    }, ("model.attention.window=null", "model.position.scaling=none")),
]  # fmt: skip
