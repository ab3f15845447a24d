"""The first GPT."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("openai-gpt", "default", SMALL, (
        "model.mlp.activation=gelu", "model.norm.eps=1e-5", "model.attention.scale=1.0",
    )),
    Case("openai-gpt", "swish-untied", {**SMALL, "afn": "swish", "tie_word_embeddings": False}, (
        "model.mlp.activation=relu",
    )),
]  # fmt: skip
