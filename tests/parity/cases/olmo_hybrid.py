"""OLMo Hybrid."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("olmo_hybrid", "by-type", {
        **SMALL, "rms_norm_eps": 1e-2, "attention_bias": True, "num_hidden_layers": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 3,
        "linear_allow_neg_eigval": False, "layer_types": ["linear_attention", "full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.layers.full.norm.placement=pre", "model.layers.recurrent.mixer.negative_eigenvalues=true",
        "model.layers.recurrent.mixer.norm_eps=1e-2", "model.norm.eps=1e-6", "model.attention.qk_norm.eps=1e-6",
        "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.position.theta=1e4",
    )),
    Case("olmo_hybrid", "as published", {
        **SMALL, "num_key_value_heads": None, "num_hidden_layers": 5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
    }, (
        "model.layers.recurrent.mixer.negative_eigenvalues=false", "model.layers.recurrent.mixer=none",
        "model.position.kind=rope",
    )),
    Case("olmo_hybrid", "scaled", {
        **SMALL, "num_hidden_layers": 2, "hidden_act": "swish",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
    }, ("model.position.scaling=none", "model.position.theta=1e4")),
]  # fmt: skip
