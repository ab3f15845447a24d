"""Qwen 3.5, the text part."""

from tests.parity.cases.qwen3_next import LINEAR
from tests.parity.tiny import SMALL, Case

CASES = [
    Case("qwen3_5_text", "by-type", {
        **SMALL, **LINEAR, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_hidden_layers": 4, "rms_norm_eps": 1e-2, "attention_bias": True,
    }, (
        "model.layers.recurrent.mixer.negative_eigenvalues=true", "model.layers.recurrent.mixer.norm_eps=1e-6",
        "model.norm.eps=1e-6", "model.norm.unit_offset=false", "model.attention.qk_norm.eps=1e-6",
        "model.attention.gate=null", "model.attention.gate.bias=false", "model.position.fraction=1.0",
    )),
    Case("qwen3_5_text", "by-interval", {
        **SMALL, **LINEAR, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
        "tie_word_embeddings": True, "head_dim": 24,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2],
            "mrope_interleaved": True,
        },
    }, ("model.layers.recurrent.mixer=none", "model.position.theta=10000.0", "model.position.fraction=0.25")),
]  # fmt: skip
