"""Gemma 4 Unified."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("gemma4_unified_text", "keys as values", {
        **SMALL, "head_dim": 8, "global_head_dim": 12, "sliding_window": 7, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    }, ("model.attention.v_norm=null", "model.block.stream_scale=false", "model.layers.sliding.attention.window=8")),
    Case("gemma4_unified_text", "values of their own", {
        **SMALL, "head_dim": 8, "global_head_dim": 12, "tie_word_embeddings": False, "attention_bias": True,
        "rms_norm_eps": 1e-2, "final_logit_softcapping": 2.0, "use_bidirectional_attention": None,
        "hidden_activation": "silu",
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
        },
    }, ("model.head.softcap=null", "model.attention.v_norm.eps=1e-6", "model.layers.full.position.theta=20")),
]  # fmt: skip
