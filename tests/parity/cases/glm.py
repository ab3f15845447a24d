"""GLM."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("glm", "partial", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3, "rope_parameters": {
        "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.34,
    }}, (
        "model.norm.eps=1e-6", "model.position.pairing=half", "model.position.fraction=0.5",
        "model.attention.qkv_bias=false",
    )),
    Case("glm", "whole-no-bias-tied", {
        **SMALL, "head_dim": 8, "num_key_value_heads": 1, "attention_bias": False, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "partial_rotary_factor": 1.0,
        },
    }, ("model.position.scaling=none", "model.position.fraction=0.5")),
]  # fmt: skip
