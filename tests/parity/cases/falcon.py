"""Falcon."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "layer_norm_epsilon": 1e-3,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("falcon", "7b", SMALL, ("model.mlp.activation=gelu_tanh", "model.norm.eps=1e-5", "model.position=none")),
    Case("falcon", "40b", {
        **SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "ffn_hidden_size": 48,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
    }, ("model.block.parallel=none", "model.position.scaling=none")),
    Case("falcon", "11b", {
        **SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
        "tie_word_embeddings": False, "activation": "relu",
    }, ("model.position.theta=100.0",)),
    Case("falcon", "rw", {
        **SMALL, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True,
    }, ("model.position.form=distance", "model.position=none"), attention="sdpa"),
    Case("falcon", "rw-uneven-heads", {
        **SMALL, "hidden_size": 48, "num_attention_heads": 12, "alibi": True, "multi_query": False,
    }, ("model.position.form=distance", "model.position.max_bias=4"), attention="sdpa"),
    Case("falcon", "alibi-grouped", {
        **SMALL, "alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2,
    }, ("model.position=none",), attention="sdpa"),
]  # fmt: skip
