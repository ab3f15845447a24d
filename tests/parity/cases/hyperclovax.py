"""HyperCLOVA X SEED."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("hyperclovax", "double norms, multipliers", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-2, "embedding_multiplier": 3.0, "attention_multiplier": 0.11,
        "residual_multiplier": 0.6, "logits_scaling": 0.3, "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1,
        },
    }, (
        "model.norm.eps=1e-6", "model.embedding.scale=1.0", "model.attention.scale=null",
        "model.block.attention_multiplier=1.0", "model.block.mlp_multiplier=1.0", "model.head.scale=1.0",
        "model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.mlp.bias=false",
        "model.position.scaling=none", "model.norm.placement=pre",
    )),
    Case("hyperclovax", "single norms, tied", {
        **SMALL, "num_key_value_heads": None, "use_post_norm": False, "tie_word_embeddings": True, "hidden_act": "gelu",
    }, ("model.attention.scale=0.2", "model.mlp.activation=silu", "model.norm.placement=double")),
]  # fmt: skip
