"""Seed-OSS."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("seed_oss", "default-biases", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3}, (
        "model.attention.qkv_bias=false", "model.norm.eps=1e-6",
    )),
    Case("seed_oss", "other-biases", {
        **SMALL, "head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0},
    }, ("model.attention.out_bias=false", "model.mlp.bias=false", "model.position.scaling=none")),
    Case("seed_oss", "dynamic", {
        **SMALL, "head_dim": 8, "max_position_embeddings": 24,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 20.0, "factor": 3.0},
    }, ("model.position.scaling=none", "model.position.scaling.factor=2.0"), cached=False),
]  # fmt: skip
