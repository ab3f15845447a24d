"""GPT-NeoX Japanese."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_multiple_size": 3, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("gpt_neox_japanese", "default", {**SMALL, "layer_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.layers.last.attention.out_bias=false", "model.position.theta=100",
        "model.mlp.activation=relu",
    )),
    Case("gpt_neox_japanese", "partial-untied", {
        **SMALL, "hidden_act": "relu", "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
    }, ("model.position.fraction=1", "model.position.theta=1e4", "model.mlp.activation=gelu")),
    Case("gpt_neox_japanese", "one-layer", {**SMALL, "num_hidden_layers": 1}, ("model.attention.out_bias=false",)),
]  # fmt: skip
