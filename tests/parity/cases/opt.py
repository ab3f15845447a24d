"""OPT."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("opt", "pre", SMALL, ("model.mlp.activation=silu", "model.norm.eps=1e-3")),
    Case("opt", "post-narrow", {**SMALL, "do_layer_norm_before": False, "word_embed_proj_dim": 20}, (
        "model.mlp.activation=gelu",
    )),
    Case("opt", "narrow-untied", {**SMALL, "word_embed_proj_dim": 40, "tie_word_embeddings": False}),
    Case("opt", "no-bias-gelu", {
        **SMALL, "enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu",
    }, ("model.mlp.activation=gelu_tanh",)),
]  # fmt: skip
