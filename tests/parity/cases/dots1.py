"""dots.llm1."""

from tests.parity.cases.glm4_moe import MOE
from tests.parity.tiny import Case

CASES = [
    Case("dots1", "groups, windows", {
        **MOE, "num_hidden_layers": 4, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
        "norm_topk_prob": True, "routed_scaling_factor": 1.7, "head_dim": 12, "rms_norm_eps": 1e-2,
        "attention_bias": True, "sliding_window": 7, "max_window_layers": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.mlp.router.groups=null", "model.mlp.router.factor=1.0", "model.mlp.router.normalise=false",
        "model.mlp.router.score=softmax", "model.mlp.router.correction=null", "model.mlp.active=2",
        "model.mlp.shared=null", "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-6",
        "model.norm.eps=1e-6", "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.position.theta=1e4", "model.layers.sliding.attention.window=8",
    )),
    Case("dots1", "no window", {
        **MOE, "num_key_value_heads": None, "sliding_window": None, "max_window_layers": 0, "n_shared_experts": 2,
        "tie_word_embeddings": True, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, (
        "model.mlp.router.normalise=true", "model.attention.window=7", "model.mlp.activation=silu",
        "model.position.scaling=none",
    )),
]  # fmt: skip
