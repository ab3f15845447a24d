"""Qwen 3.5, the text part of mixtures of experts."""

from tests.parity.cases.qwen3_next import EXPERTS, LINEAR
from tests.parity.tiny import SMALL, Case

CASES = [
    Case("qwen3_5_moe_text", "by-type", {
        **SMALL, **LINEAR, **EXPERTS, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2,
        # All experts are active, so that bfloat16 does not have to choose between nearly equal scores.
        "num_experts_per_tok": 5, "num_hidden_layers": 4, "rms_norm_eps": 1e-2, "attention_bias": True,
    }, (
        "model.layers.recurrent.mixer.norm_eps=1e-6", "model.norm.unit_offset=false", "model.attention.gate=null",
        "model.position.fraction=1.0", "model.mlp.shared.gate=false",
    )),
    Case("qwen3_5_moe_text", "by-interval", {
        **SMALL, **LINEAR, **EXPERTS, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2, "tie_word_embeddings": True, "head_dim": 24, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    }, ("model.position.theta=10000.0", "model.mlp.router.normalise=false", "model.mlp.active=1")),
]  # fmt: skip
