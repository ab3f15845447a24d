"""Granite, a mixture with a shared expert."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("granitemoeshared", "shared", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 3, "shared_intermediate_size": 20,
        "embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 13.0,
    }, ("model.block.mlp_multiplier=1.0", "model.mlp.active=2", "model.mlp.shared=null")),
    Case("granitemoeshared", "none-shared", {**SMALL, "attention_bias": True, "tie_word_embeddings": True}, (
        "model.attention.out_bias=false",
    )),
]  # fmt: skip
