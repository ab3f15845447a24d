"""Granite 4, hybrid models."""

from tests.parity.cases.bamba import MAMBA
from tests.parity.tiny import SMALL, Case

CASES = [
    Case("granitemoehybrid", "mixture with RoPE", {
        **SMALL, **MAMBA, "num_local_experts": 5, "num_experts_per_tok": 3, "shared_intermediate_size": 20,
        "num_hidden_layers": 4, "embedding_multiplier": 3.0, "attention_multiplier": 0.25,
        "residual_multiplier": 0.22, "logits_scaling": 13.0, "rms_norm_eps": 1e-2, "attention_bias": True,
        "mamba_proj_bias": True, "position_embedding_type": "rope",
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-6", "model.layers.recurrent.mixer.norm.eps=1e-6", "model.layers.recurrent.block.mixer_multiplier=1.0",
        "model.block.attention_multiplier=1.0", "model.block.mlp_multiplier=1.0", "model.mlp.active=2",
        "model.mlp.shared=null", "model.position.theta=1e4", "model.attention.scale=1.0", "model.embedding.scale=1.0",
        "model.head.scale=1.0", "model.attention.out_bias=false", "model.layers.recurrent.mixer.in_bias=false",
    )),
    Case("granitemoehybrid", "dense without positions", {
        **SMALL, **MAMBA, "num_local_experts": 0, "shared_intermediate_size": 40, "mamba_conv_bias": False,
        "layer_types": ["full_attention", "linear_attention", "full_attention"], "tie_word_embeddings": True,
    }, ("model.position=rope", "model.layers.recurrent.mixer.norm.gate=after")),
    # With a cache, the published code does not clamp the step size of single tokens.
    Case("granitemoehybrid", "steps", {
        **SMALL, **MAMBA, "num_local_experts": 4, "mamba_d_head": "auto", "residual_multiplier": 0.5,
        "time_step_limit": [0.8, 1.5], "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    }, (
        "model.layers.recurrent.mixer.dt_min=0.0", "model.layers.recurrent.mixer.dt_max=null",
        "model.layers.recurrent.block.mixer_multiplier=1.0",
    ), cached=False),
    Case("granitemoehybrid", "attention only", {
        **SMALL, **MAMBA, "num_local_experts": 0, "hidden_act": "gelu", "layer_types": ["full_attention"] * 3,
        "position_embedding_type": "rope", "residual_multiplier": 0.5,
    }, ("model.mlp.activation=silu", "model.block.attention_multiplier=1.0")),
]  # fmt: skip
