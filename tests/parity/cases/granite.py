"""Granite."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("granite", "multipliers", {
        **SMALL, "embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.22,
        "logits_scaling": 13.0, "rms_norm_eps": 1e-3,
    }, (
        "model.embedding.scale=1.0", "model.attention.scale=null", "model.block.attention_multiplier=1.0",
        "model.block.mlp_multiplier=1.0", "model.head.scale=1.0", "model.norm.eps=1e-6",
    )),
    Case("granite", "biases", {
        **SMALL, "num_key_value_heads": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "logits_scaling": 8, "embedding_multiplier": 12, "attention_multiplier": 1, "residual_multiplier": 2,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                            "original_max_position_embeddings": 16},
    }, ("model.mlp.bias=false", "model.attention.out_bias=false", "model.position.scaling=none")),
]  # fmt: skip
