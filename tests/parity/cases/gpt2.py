"""GPT-2."""

from tests.parity.tiny import Case

CASES = [
    Case("gpt2", "default", {
        "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-3,
        "bos_token_id": 1, "eos_token_id": 2,
    }, ("model.mlp.activation=gelu",)),
]  # fmt: skip
