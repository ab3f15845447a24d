"""MPT."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "d_model": 32, "n_layers": 3, "n_heads": 4, "layer_norm_epsilon": 1e-3, "max_seq_len": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("mpt", "default", SMALL, ("model.position=none", "model.mlp.activation=gelu_tanh", "model.norm.eps=1e-5")),
    Case("mpt", "clipped-uneven-untied", {
        **SMALL, "d_model": 36, "n_heads": 6, "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.7},
        "tie_word_embeddings": False,
    }, ("model.attention.clip_qkv=null", "model.attention.scale=null", "model.position.max_bias=4")),
]  # fmt: skip
