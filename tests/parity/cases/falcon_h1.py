"""Falcon-H1."""

from typing import Any

from tests.parity.tiny import SMALL, Case

MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_ssm": 96, "mamba_n_groups": 2, "mamba_d_state": 5,
    "mamba_d_conv": 3, "mamba_chunk_size": 16,
}  # fmt: skip

MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 5.7, "lm_head_multiplier": 0.04, "mlp_multipliers": [0.9, 0.6], "key_multiplier": 0.4,
    "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.7, "ssm_in_multiplier": 1.6,
    "ssm_out_multiplier": 0.45, "ssm_multipliers": [0.35, 0.8, 1.4, 0.55, 0.3],
}  # fmt: skip

CASES = [
    Case("falcon_h1", "multipliers and biases", {
        **SMALL, **MAMBA, **MULTIPLIERS, "rms_norm_eps": 1e-2, "attention_bias": True, "mlp_bias": True,
        "mamba_proj_bias": True, "projectors_bias": True, "mamba_conv_bias": False, "mamba_rms_norm": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.mixer.norm.eps=1e-5", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.mlp.bias=false", "model.mixer.in_bias=false",
        "model.mixer.out_bias=false", "model.mixer.norm.gate=before", "model.position.theta=1e4",
        "model.embedding.scale=1.0", "model.head.scale=1.0", "model.block.attention_multiplier=1.0",
        "model.block.mixer_multiplier=1.0", "model.block.mlp_multiplier=1.0",
    )),
    Case("falcon_h1", "multipliers", {
        **SMALL, **MAMBA, **MULTIPLIERS, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "tie_word_embeddings": True, "head_dim": 12,
    }, ("model.mixer.norm.gate=after", "model.mixer.conv_bias=false")),
    # With a cache, the published code does not clamp the step size of single tokens.
    Case("falcon_h1", "steps", {
        **SMALL, **MAMBA, "mamba_d_head": "auto", "mamba_d_ssm": None, "mamba_expand": 3, "projectors_bias": True,
        "time_step_limit": [0.8, 1.5],
    }, (
        "model.mixer.dt_min=0.0", "model.mixer.dt_max=null", "model.mixer.norm.kind=rmsnorm",
        "model.mixer.out_bias=false",
    ), cached=False),
]  # fmt: skip
