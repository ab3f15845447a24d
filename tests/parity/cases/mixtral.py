"""Mixtral."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("mixtral", "window", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 7, "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.mlp.active=2", "model.mlp.router.normalise=false", "model.attention.window=8", "model.norm.eps=1e-5",
        "model.mlp.router.score=sigmoid",
    )),
    Case("mixtral", "unsaid", {**SMALL, "head_dim": 12, "hidden_act": "gelu", "tie_word_embeddings": True}, (
        "model.position.theta=10000.0", "model.mlp.activation=silu", "model.mlp.active=3",
    )),
]  # fmt: skip
