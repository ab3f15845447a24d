"""CTRL."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "n_embd": 32, "dff": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("ctrl", "default", SMALL, (
        "model.embedding.scale=1", "model.position.layout=interleaved", "model.position.offset=1",
        "model.norm.eps=1e-2", "model.mlp.activation=gelu", "model.head.bias=false", "model.norm.placement=post",
    )),
    Case("ctrl", "untied", {**SMALL, "tie_word_embeddings": False}, ("model.position=rope",)),
]  # fmt: skip
