"""Ministral 3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("ministral3", "yarn, grows", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.7,
        },
    }, (
        "model.norm.eps=1e-5", "model.attention.temperature=null", "model.attention.temperature.beta=0.1",
        "model.attention.temperature.length=17", "model.attention.temperature.offset=1", "model.position.scaling=none",
        "model.position.scaling.attention_factor=null",
    )),
    Case("ministral3", "window, tied", {
        **SMALL, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": 7, "tie_word_embeddings": True,
        "hidden_act": "gelu",
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 50.0, "original_max_position_embeddings": 9,
            "llama_4_scaling_beta": 0.5,
        },
    }, ("model.attention.window=8", "model.mlp.activation=silu", "model.attention.temperature=null")),
    Case("ministral3", "constant", {
        **SMALL,
        "rope_parameters": {
            "rope_type": "linear", "factor": 4.0, "rope_theta": 50.0, "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.0,
        },
    }, ("model.position.scaling=none",)),
]  # fmt: skip
