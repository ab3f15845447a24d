"""RecurrentGemma."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("recurrent_gemma", "biases, untied", {
        **SMALL, "num_hidden_layers": 5, "rms_norm_eps": 1e-2, "attention_window_size": 7, "attention_bias": True,
        "conv1d_width": 3, "logits_soft_cap": 2.0, "tie_word_embeddings": False,
        "block_types": ["recurrent", "attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75},
    }, (
        "model.norm.eps=1e-6", "model.norm.unit_offset=false", "model.attention.window=8",
        "model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.mlp.bias=false",
        "model.head.softcap=30.0", "model.position.fraction=1.0", "model.position.theta=1e4",
        "model.embedding.scale=sqrt_d_model", "model.mlp.activation=gelu",
    )),
    Case("recurrent_gemma", "default pattern", {**SMALL, "num_hidden_layers": 4, "num_key_value_heads": 1}, (
        "model.layers.recurrent.mixer=none", "model.embedding.scale=1.0",
    )),
]  # fmt: skip
