"""XGLM."""

from tests.parity.tiny import Case

BASE = {
    "vocab_size": 61, "d_model": 32, "ffn_dim": 48, "num_layers": 3, "attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("xglm", "scaled", BASE, (
        "model.embedding.scale=1", "model.position.layout=interleaved", "model.position.theta=10000",
        "model.position.offset=0", "model.mlp.activation=gelu_tanh",
    )),
    Case("xglm", "plain-untied", {
        **BASE, "scale_embedding": False, "activation_function": "relu", "tie_word_embeddings": False,
        "max_position_embeddings": 30,
    }, ("model.embedding.scale=sqrt_d_model",)),
]  # fmt: skip
