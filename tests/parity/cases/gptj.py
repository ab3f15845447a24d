"""GPT-J."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "n_embd": 40, "n_layer": 3, "n_head": 4, "n_positions": 64, "rotary_dim": 4,
    "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("gptj", "default", SMALL, (
        "model.position.pairing=half", "model.position.fraction=1.0", "model.mlp.activation=gelu",
        "model.head.bias=false",
    )),
    Case("gptj", "whole-head-tied", {
        **SMALL, "n_embd": 32, "rotary_dim": 8, "n_inner": 48, "activation_function": "silu",
        "tie_word_embeddings": True,
    }, ("model.position.fraction=0.5",)),
]  # fmt: skip
