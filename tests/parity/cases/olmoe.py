"""OLMoE."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("olmoe", "biases", {
        **SMALL, "num_experts": 6, "num_experts_per_tok": 3, "attention_bias": True, "norm_topk_prob": True,
        "rms_norm_eps": 1e-2,
    }, (
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-6", "model.mlp.router.normalise=false",
        "model.attention.out_bias=false", "model.mlp.active=2",
    )),
    Case("olmoe", "unsaid", {**SMALL, "num_key_value_heads": None, "tie_word_embeddings": True}, (
        "model.mlp.router.normalise=true", "model.mlp.active=7",
    )),
]  # fmt: skip
