"""Hunyuan, dense."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("hunyuan_v1_dense", "alpha", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 20.0, "alpha": 30.0, "factor": 1.0, "beta_fast": 32,
                            "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    }, (
        "model.position.theta=20.0", "model.position.order=after_qk_norm",
        "model.norm.eps=1e-5", "model.attention.qk_norm.eps=1e-5",
    )),
    Case("hunyuan_v1_dense", "dynamic", {
        **SMALL, "head_dim": 12, "max_position_embeddings": 24,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 20.0, "factor": 3.0},
    }, ("model.position.scaling=none",), cached=False),
    Case("hunyuan_v1_dense", "biases", {
        **SMALL, "head_dim": 8, "num_key_value_heads": None, "attention_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }, ("model.attention.out_bias=false", "model.attention.qkv_bias=false")),
]  # fmt: skip
