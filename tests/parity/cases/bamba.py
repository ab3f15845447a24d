"""Bamba."""

from typing import Any

from tests.parity.tiny import SMALL, Case

MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_expand": 3, "mamba_n_groups": 2, "mamba_d_state": 5,
    "mamba_d_conv": 3, "mamba_chunk_size": 16,
}  # fmt: skip

CASES = [
    Case("bamba", "biases", {
        **SMALL, **MAMBA, "num_hidden_layers": 4, "attn_layer_indices": [1, 3], "rms_norm_eps": 1e-2,
        "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75},
    }, (
        "model.norm.eps=1e-5", "model.layers.recurrent.mixer.norm.eps=1e-5", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.mlp.bias=false", "model.layers.recurrent.mixer.in_bias=false",
        "model.layers.recurrent.mixer.out_bias=false", "model.layers.recurrent.mixer.norm.gate=after",
        "model.position.theta=1e4", "model.position.fraction=1.0",
    )),
    # With a cache, the published code does not clamp the step size of single tokens.
    Case("bamba", "steps", {
        **SMALL, **MAMBA, "mamba_d_head": "auto", "mamba_n_heads": 8, "mamba_expand": 2, "attn_layer_indices": [0],
        "time_step_limit": [0.8, 1.5], "tie_word_embeddings": True, "hidden_act": "silu",
    }, (
        "model.layers.recurrent.mixer.dt_min=0.0", "model.layers.recurrent.mixer.dt_max=null",
        "model.layers.recurrent.mixer.conv_bias=false",
    ), cached=False),
]  # fmt: skip
