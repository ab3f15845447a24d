"""FlexOlmo."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("flex_olmo", "sums of 1, biases", {
        **SMALL, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True, "attention_bias": True,
        "rms_norm_eps": 1e-2, "head_dim": 12,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1,
        },
    }, (
        "model.norm.eps=1e-6", "model.norm.placement=pre", "model.attention.qk_norm=none",
        "model.attention.qk_norm.eps=1e-6", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.position.scaling=none", "model.mlp.router.normalise=false",
        "model.mlp.active=2",
    )),
    Case("flex_olmo", "tied", {
        **SMALL, "num_key_value_heads": None, "tie_word_embeddings": True, "hidden_act": "gelu",
    }, ("model.mlp.activation=silu", "model.position.theta=100.0")),
]  # fmt: skip
