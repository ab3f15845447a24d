"""Granite, mixtures of experts."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("granitemoe", "multipliers", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 3, "embedding_multiplier": 3.0,
        "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 13.0, "rms_norm_eps": 1e-3,
    }, (
        "model.embedding.scale=1.0", "model.attention.scale=null", "model.block.attention_multiplier=1.0",
        "model.block.mlp_multiplier=1.0", "model.head.scale=1.0", "model.mlp.active=2",
        "model.mlp.router.normalise=false",
    )),
    Case("granitemoe", "biases", {
        **SMALL, "num_key_value_heads": None, "attention_bias": True, "tie_word_embeddings": True,
    }, ("model.attention.out_bias=false", "model.mlp.active=3")),
]  # fmt: skip
