"""BLOOM."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "n_layer": 3, "n_head": 4, "layer_norm_epsilon": 1e-3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("bloom", "default", SMALL, (
        "model.position=none", "model.mlp.activation=gelu", "model.embedding.norm=false", "model.norm.eps=1e-5",
    )),
    Case("bloom", "carried-untied", {
        **SMALL, "hidden_size": 36, "n_head": 6, "apply_residual_connection_post_layernorm": True,
        "tie_word_embeddings": False,
    }, ("model.norm.placement=pre", "model.position.max_bias=4")),
]  # fmt: skip
