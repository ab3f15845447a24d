"""Phi 3."""

from tests.parity.tiny import SMALL, Case

LONG = {"short_factor": [1.0, 1.3, 1.7, 2.5], "long_factor": [1.0, 2.0, 5.0, 9.0]}

CASES = [
    Case("phi3", "window", {**SMALL, "sliding_window": 7, "rms_norm_eps": 1e-3}, (
        "model.attention.window=8", "model.norm.eps=1e-6",
    )),
    Case("phi3", "longrope-long", {
        **SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True, "original_max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 100.0, **LONG},
    }, (
        "model.position.scaling=none", "model.position.scaling.original_max_seq_len=64",
        "model.position.scaling.factor=1.0",
    )),
    Case("phi3", "longrope-switch", {
        **SMALL, "num_key_value_heads": 4, "original_max_position_embeddings": 44,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 100.0, "attention_factor": 1.3, **LONG},
    }, ("model.position.scaling.attention_factor=1.0", "model.position.scaling.original_max_seq_len=32")),
    Case("phi3", "partial", {
        **SMALL, "hidden_act": "gelu_pytorch_tanh",
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.75,
                            "short_factor": [1.0, 1.3, 1.7], "long_factor": [1.0, 2.0, 5.0]},
        "original_max_position_embeddings": 16,
    }, ("model.position.scaling=none", "model.mlp.activation=gelu")),
    Case("phi3", "partial-plain", {
        **SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    }, ("model.position.fraction=1.0",)),
]  # fmt: skip
