"""ERNIE 4.5, dense."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("ernie4_5", "biases", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-2, "use_bias": True, "rope_parameters": {
            "rope_type": "default", "rope_theta": 50.0,
        },
    }, (
        "model.norm.eps=1e-5", "model.position.pairing=half", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.mlp.bias=false",
    )),
    Case("ernie4_5", "narrow-untied", {
        **SMALL, "head_dim": None, "num_key_value_heads": None, "tie_word_embeddings": False, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
        },
    }, ("model.position.scaling=none",)),
    Case("ernie4_5", "unsaid", SMALL, ("model.position.theta=10000.0",)),
]  # fmt: skip
