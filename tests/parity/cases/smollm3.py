"""SmolLM 3."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("smollm3", "every-second", {
        **SMALL, "num_hidden_layers": 5, "no_rope_layer_interval": 2, "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }, (
        "model.layers.pattern=[rope, rope, rope, nope]", "model.layers.pattern=[nope, rope]",
        "model.norm.eps=1e-6",
    )),
    Case("smollm3", "sliding", {
        **SMALL, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 7, "tie_word_embeddings": False,
        "attention_bias": True, "mlp_bias": True,
    }, ("model.layers.nope_sliding.attention.window=8", "model.mlp.bias=false", "model.position.theta=10000.0")),
    Case("smollm3", "four-kinds", {
        **SMALL, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 6,
        "no_rope_layers": [1, 0, 1, 0],
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    }, (
        "model.layers.nope_sliding.attention.window=null", "model.layers.rope_sliding.attention.window=null",
        "model.layers.nope_sliding.position.kind=rope", "model.layers.nope.position.kind=rope",
    )),
    Case("smollm3", "never-turns", {**SMALL, "no_rope_layers": [0, 0, 0]}, ("model.position=rope",)),
]  # fmt: skip
