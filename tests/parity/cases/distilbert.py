"""DistilBERT."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64,
    "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("distilbert", "default", SMALL, ("model.norm.eps=1e-2", "model.head.transform.activation=relu")),
    Case("distilbert", "relu-untied", {**SMALL, "activation": "relu", "tie_word_embeddings": False}, (
        "model.mlp.activation=gelu",
    )),
    Case("distilbert", "sinusoidal", {**SMALL, "sinusoidal_pos_embds": True}, ("model.head.transform.activation=relu",)),
]  # fmt: skip
