"""Command R7B and Command A."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("cohere2", "pattern", {
        **SMALL, "num_hidden_layers": 4, "sliding_window": 7, "sliding_window_pattern": 3, "layer_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "logit_scale": 0.3,
    }, (
        "model.norm.eps=1e-5", "model.head.scale=1", "model.position.pairing=half", "model.layers.full.position=rope",
        "model.layers.sliding.attention.window=8", "model.norm.kind=rmsnorm",
    )),
    Case("cohere2", "wide-heads-biases-untied", {
        **SMALL, "num_key_value_heads": 4, "head_dim": 12, "sliding_window": 5, "attention_bias": True,
        "tie_word_embeddings": False, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }, ("model.layers.pattern=[sliding, full]",)),
    Case("cohere2", "all-full", {**SMALL, "layer_types": ["full_attention"] * 3}, ("model.position=rope",)),
]  # fmt: skip
