"""The language model of Cohere Compass."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("cohere_compass_text", "windows with RoPE", {
        **SMALL, "num_hidden_layers": 4, "sliding_window": 7, "layer_norm_eps": 1e-2, "logit_scale": 0.3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 1, 1]},
            "full_attention": None,
        },
    }, (
        "model.norm.eps=1e-5", "model.head.scale=1", "model.layers.sliding.position.pairing=interleaved",
        "model.layers.sliding.position.theta=1e4", "model.layers.full.position=rope",
        "model.layers.sliding.attention.window=8", "model.norm.kind=rmsnorm", "model.block.parallel=separate",
    )),
    Case("cohere_compass_text", "two thetas, biases, untied", {
        **SMALL, "num_key_value_heads": None, "sliding_window": 5, "attention_bias": True, "tie_word_embeddings": False,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
        },
    }, (
        "model.layers.full.position.scaling=none", "model.layers.sliding.position.theta=300",
        "model.attention.out_bias=false",
    )),
    Case("cohere_compass_text", "all-full", {
        **SMALL, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 70.0}},
    }, ("model.position.theta=1e4",)),
]  # fmt: skip
