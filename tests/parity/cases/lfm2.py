"""LFM2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("lfm2", "hybrid", {
        **SMALL, "layer_types": ["conv", "full_attention", "conv"], "conv_bias": True, "conv_L_cache": 4,
        "block_multiple_of": 12, "block_ffn_dim_multiplier": 1.3, "norm_eps": 1e-2, "tie_word_embeddings": False,
    }, (
        "model.layers.recurrent.mixer.bias=false", "model.norm.eps=1e-5",
        "model.attention.qk_norm=none", "model.position.theta=10000.0",
    )),
    Case("lfm2", "by-index", {
        **SMALL, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }, ("model.layers.recurrent.block.mixer_multiplier=0.5",)),
    Case("lfm2", "all-full", {**SMALL, "block_multiple_of": 20}),
]  # fmt: skip
