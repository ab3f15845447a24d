"""StableLM."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("stablelm", "serial", {
        **SMALL, "layer_norm_eps": 1e-2, "use_qkv_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.norm.eps=1e-5", "model.attention.qkv_bias=false", "model.position.fraction=1", "model.norm.bias=false",
        "model.norm.kind=rmsnorm",
    )),
    Case("stablelm", "parallel-qk-norm", {
        **SMALL, "num_key_value_heads": 1, "layer_norm_eps": 1e-2, "qk_layernorm": True, "use_parallel_residual": True,
        "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "linear", "rope_theta": 50.0, "factor": 4.0, "partial_rotary_factor": 0.5,
        },
    }, (
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5", "model.position.scaling=none",
        "model.position.fraction=0.25", "model.norm.kind=rmsnorm",
    )),
]  # fmt: skip
