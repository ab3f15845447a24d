"""StarCoder and SantaCoder."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("gpt_bigcode", "one-key-head", SMALL, (
        "model.mlp.activation=gelu", "model.norm.eps=1e-5", "model.position=none", "model.attention.qkv_bias=false",
    )),
    Case("gpt_bigcode", "fused-per-head", {
        **SMALL, "multi_query": False, "n_inner": 40, "scale_attn_weights": False, "activation_function": "relu",
        "tie_word_embeddings": False, "attention_softmax_in_fp32": False,
    }, ("model.attention.scale=null", "model.mlp.activation=silu")),
    Case("gpt_bigcode", "one-head", {**SMALL, "n_head": 1, "activation_function": "gelu"}, (
        "model.mlp.activation=gelu_tanh",
    )),
]  # fmt: skip
