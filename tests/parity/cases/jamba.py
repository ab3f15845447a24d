"""Jamba."""

from typing import Any

from tests.parity.tiny import SMALL, Case

MAMBA: dict[str, Any] = {"mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 3, "mamba_dt_rank": 7}

CASES = [
    Case("jamba", "biases", {
        **SMALL, **MAMBA, "num_hidden_layers": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 5,
        "num_experts_per_tok": 3, "rms_norm_eps": 1e-2, "mamba_proj_bias": True, "mamba_conv_bias": False,
        "tie_word_embeddings": True,
    }, (
        "model.norm.eps=1e-5", "model.layers.recurrent.mixer.inner_norm.eps=1e-5",
        "model.layers.recurrent.mixer.inner_norm.kind=none", "model.layers.recurrent.mixer.in_bias=false",
        "model.layers.recurrent.mixer.out_bias=false", "model.mlp.router.normalise=true", "model.mlp.active=2",
        "model.position.kind=rope",
    )),
    Case("jamba", "all-dense", {
        **SMALL, "mamba_d_state": 4, "num_experts": 1, "attn_layer_period": 2, "attn_layer_offset": 0,
    }, ("model.layers.recurrent.mixer.conv_bias=false",)),
    Case("jamba", "all-experts", {
        **SMALL, **MAMBA, "mamba_dt_rank": "auto", "num_experts": 3, "expert_layer_period": 1, "expert_layer_offset": 0,
        "attn_layer_offset": 2,
    }, ("model.layers.recurrent.mixer.inner_norm.kind=none", "model.layers.recurrent.mixer.conv_bias=false")),
]  # fmt: skip
