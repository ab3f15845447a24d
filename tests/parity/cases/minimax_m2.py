"""MiniMax M2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("minimax_m2", "partial", {
        **SMALL, "num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 12, "rotary_dim": 6,
        "rms_norm_eps": 1e-2,
    }, (
        "model.position.fraction=1.0", "model.attention.qk_norm=none", "model.mlp.router.normalise=false",
        "model.mlp.router.correction=null", "model.mlp.router.score=softmax", "model.mlp.active=2",
        "model.position.theta=10000.0",
    )),
    Case("minimax_m2", "tied", {
        **SMALL, "num_local_experts": 8, "num_experts_per_tok": 5, "head_dim": 8, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                            "original_max_position_embeddings": 16, "partial_rotary_factor": 0.75},
    }, ("model.position.scaling=none", "model.position.fraction=1.0", "model.attention.qk_norm=none")),
]  # fmt: skip
