"""Solar Open."""

from tests.parity.cases.glm4_moe import MOE as WITH_DENSE
from tests.parity.tiny import Case

MOE = {key: value for key, value in WITH_DENSE.items() if key != "intermediate_size"}

CASES = [
    Case("solar_open", "groups, yarn", {
        **MOE, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.7, "head_dim": 16,
        "attention_bias": True, "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1,
        },
    }, (
        "model.mlp.router.groups=null", "model.mlp.router.factor=1.0", "model.mlp.router.normalise=false",
        "model.mlp.router.score=softmax", "model.mlp.router.correction=null", "model.mlp.router.groups.by=max",
        "model.mlp.active=2", "model.mlp.shared=null", "model.attention.qkv_bias=false", "model.norm.eps=1e-5",
        "model.position.scaling=none",
    )),
    Case("solar_open", "linear, tied", {
        **MOE, "head_dim": 12, "norm_topk_prob": False, "tie_word_embeddings": True, "n_shared_experts": 0,
        "hidden_act": "gelu", "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, ("model.mlp.router.normalise=true", "model.position.scaling=none", "model.mlp.activation=silu")),
]  # fmt: skip
