"""Grok-1. The published model is a reimplementation of its PyTorch port, because transformers has no class for it."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("grok-1", "as-published", {
        **SMALL, "intermediate_size": 40, "num_experts": 6, "attn_output_multiplier": 0.35, "max_attn_value": 0.7,
        "embedding_multiplier_scale": 5.7, "output_multiplier_scale": 0.57, "rms_norm_eps": 1e-1,
    }, (
        "model.norm.placement=pre", "model.norm.eps=1e-5", "model.norm.unit_offset=true",
        "model.attention.scale=null", "model.attention.softcap=null", "model.embedding.scale=1.0",
        "model.head.scale=1.0", "model.head.tied=false", "model.mlp.activation=gelu_tanh", "model.mlp.active=3",
        "model.mlp.router.normalise=true", "model.mlp.router.score=sigmoid", "model.position.theta=100.0",
        "model.position.pairing=interleaved", "model.position=none",
    )),
    Case("grok-1", "untied", {
        **SMALL, "num_key_value_heads": None, "num_experts": 4, "num_experts_per_tok": 1, "tie_word_embeddings": False,
        "max_attn_value": 30.0,
    }, ("model.attention.scale=null", "model.attention.softcap=3.0", "model.mlp.router.normalise=true")),
    Case("grok-1", "defaults", {**SMALL, "num_experts": 3, "num_key_value_heads": 1, "num_hidden_layers": 1}, (
        "model.attention.softcap=null", "model.mlp.router.applied_to=input",
    )),
]  # fmt: skip
