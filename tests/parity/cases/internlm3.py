"""InternLM 3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("internlm3", "biases", {
        **SMALL, "head_dim": 12, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 6.0},
        "max_position_embeddings": 16,
    }, (
        "model.norm.eps=1e-5", "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.mlp.bias=false", "model.position.scaling=none",
    ), cached=False),
    Case("internlm3", "no-bias-tied", {
        **SMALL, "num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": True, "hidden_act": "gelu",
    }, ("model.mlp.activation=silu", "model.position.theta=100.0")),
]  # fmt: skip
