"""Qwen3-Next."""

from typing import Any

from tests.parity.tiny import SMALL, Case

LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
}  # fmt: skip

CASES = [
    Case("qwen3_next", "by-type", {
        **SMALL, **LINEAR, **EXPERTS, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2,
        # All experts are active, so that bfloat16 does not have to choose between nearly equal scores.
        "num_experts_per_tok": 5, "num_hidden_layers": 4, "rms_norm_eps": 1e-2, "attention_bias": True,
    }, (
        "model.layers.recurrent.mixer.negative_eigenvalues=true", "model.layers.recurrent.mixer.norm_eps=1e-6",
        "model.norm.eps=1e-6", "model.norm.unit_offset=false", "model.attention.qk_norm.eps=1e-6",
        "model.attention.gate=null", "model.attention.gate.bias=false", "model.position.fraction=1.0",
        "model.mlp.shared.gate=false",
    )),
    Case("qwen3_next", "by-interval", {
        **SMALL, **LINEAR, **EXPERTS, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 4, "num_hidden_layers": 3,
        "full_attention_interval": 2, "norm_topk_prob": False, "tie_word_embeddings": True, "head_dim": 24,
        "mlp_only_layers": [0],
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    }, ("model.layers.recurrent.mixer=none", "model.position.theta=10000.0", "model.mlp.router.normalise=true",
        "model.mlp.active=1")),
]  # fmt: skip
