"""Ministral."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("ministral", "mixed", {
        **SMALL, "head_dim": 12, "sliding_window": 7, "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.pattern=[full, sliding, sliding]",
        "model.norm.eps=1e-6",
    )),
    Case("ministral", "implied", {**SMALL, "head_dim": 8, "sliding_window": 9}, ("model.attention.window=null",)),
    Case("ministral", "full", {
        **SMALL, "head_dim": 16, "sliding_window": 5, "layer_types": ["full_attention"] * 3, "hidden_act": "relu",
    }, ("model.mlp.activation=silu",)),
]  # fmt: skip
