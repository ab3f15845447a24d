"""GLM 4.5."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

CASES = [
    Case("glm4_moe", "groups", {
        **MOE, "num_hidden_layers": 4, "first_k_dense_replace": 2, "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
        "routed_scaling_factor": 1.7, "use_qk_norm": True, "attention_bias": True, "head_dim": 16, "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75},
    }, (
        "model.mlp.router.groups=null", "model.mlp.router.factor=1.0", "model.mlp.router.normalise=false",
        "model.mlp.router.score=softmax", "model.mlp.router.correction=null", "model.mlp.router.groups.by=max",
        "model.attention.qk_norm=none", "model.attention.qkv_bias=false", "model.mlp.active=2",
    )),
    Case("glm4_moe", "plain", {
        **MOE, "norm_topk_prob": False, "tie_word_embeddings": True, "first_k_dense_replace": 0, "n_shared_experts": 0,
    }, ("model.mlp.router.normalise=true", "model.position.fraction=1.0", "model.mlp.router.correction=null")),
]  # fmt: skip
