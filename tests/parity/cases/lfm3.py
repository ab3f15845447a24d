"""LFM3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("lfm3", "implied types", {
        **SMALL, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 7, "norm_eps": 1e-2, "conv_bias": True,
        "conv_L_cache": 4, "tie_word_embeddings": False,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.4},
        },
    }, (
        "model.norm.eps=1e-5", "model.norm.placement=pre", "model.attention.gate=null", "model.attention.qk_norm=none",
        "model.layers.recurrent.mixer.bias=false", "model.layers.full.position.scaling=none",
        "model.layers.full.position.theta=20", "model.layers.sliding.position.theta=300",
        "model.layers.sliding.attention.window=8",
    )),
    Case("lfm3", "biases, no gate, single norms", {
        **SMALL, "head_dim": 8, "attention_bias": True, "use_sandwich_norm": False, "use_attention_gate": False,
        "layer_types": ["conv", "full_attention", "conv"],
    }, ("model.attention.out_bias=false", "model.position.scaling.turning=1")),
    Case("lfm3", "all-attention", {
        **SMALL, "head_dim": 8, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }, ("model.layers.sliding.attention.window=null",)),
    Case("lfm3", "all-sliding", {**SMALL, "head_dim": 8, "sliding_window": 9, "layer_types": ["sliding_attention"] * 3}),
]  # fmt: skip
