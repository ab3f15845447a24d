"""GPT-2."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("gpt2", "default", SMALL, ("model.mlp.activation=gelu", "model.norm.eps=1e-5")),
    Case("gpt2", "scaled-by-layer", {
        **SMALL, "n_inner": 40, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True,
        "activation_function": "relu", "tie_word_embeddings": False,
    }, ("model.layers=null", "model.mlp.activation=silu")),
    Case("gpt2", "unscaled", {**SMALL, "scale_attn_weights": False, "activation_function": "gelu"}, (
        "model.attention.scale=null", "model.mlp.activation=gelu_tanh",
    )),
    Case("gpt2", "unscaled-by-layer", {**SMALL, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}),
]  # fmt: skip
