"""Gemma 2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("gemma2", "alternating", {
        **SMALL, "head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-3,
    }, (
        "model.embedding={scale: 1, round_scale: false}", "model.norm.unit_offset=false", "model.norm.placement=pre",
        "model.attention.scale=null", "model.attention.softcap=null", "model.head.softcap=null",
        "model.layers.pattern=[full, sliding]", "model.mlp.activation=gelu",
    )),
    Case("gemma2", "no-caps-biases-untied", {
        **SMALL, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": False,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"], "hidden_activation": "gelu",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        },
    }, ("model.position.scaling=none", "model.layers.pattern=[sliding, full, full]")),
    Case("gemma2", "all-sliding", {
        **SMALL, "head_dim": 8, "sliding_window": 9, "layer_types": ["sliding_attention"] * 3,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    }, ("model.attention.window=null",)),
]  # fmt: skip
