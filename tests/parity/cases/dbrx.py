"""DBRX."""

from typing import Any

from tests.parity.tiny import Case

SMALL: dict[str, Any] = {
    "vocab_size": 61, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

CASES = [
    Case("dbrx", "clipped", {
        **SMALL, "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 50.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 5, "moe_top_k": 3, "ffn_act_fn": {"name": "gelu"}},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.attention.clip_qkv=null", "model.position.theta=1e4", "model.mlp.activation=silu",
        "model.mlp.router.normalise=false", "model.norm.eps=1e-1", "model.norm.kind=rmsnorm",
    )),
    Case("dbrx", "one head of keys, one expert", {
        **SMALL, "attn_config": {"clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 24, "moe_normalize_expert_weights": None},
    }, ("model.mlp.router.normalise=true",)),
]  # fmt: skip
