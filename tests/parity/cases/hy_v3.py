"""Hunyuan 3."""

from tests.parity.cases.exaone_moe import MOE
from tests.parity.tiny import Case

CASES = [
    Case("hy_v3", "biases, listed types", {
        **MOE, "num_hidden_layers": 4, "head_dim": 12, "rms_norm_eps": 1e-2, "num_shared_experts": 2,
        "router_scaling_factor": 1.7, "attention_bias": True, "mlp_bias": True, "enable_moe_fp32_combine": False,
        "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1,
        },
    }, (
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5", "model.norm.eps=1e-5",
        "model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.position.scaling=none",
        "model.mlp.router.factor=1.0", "model.mlp.router.normalise=false", "model.mlp.router.score=softmax",
        "model.mlp.router.correction=null", "model.mlp.active=2", "model.mlp.shared=null",
        "model.mlp.shared.bias=false", "model.layers.dense.mlp.bias=false",
    )),
    Case("hy_v3", "tied", {
        **MOE, "tie_word_embeddings": True, "head_dim": 8, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, ("model.mlp.router.factor=1.0", "model.mlp.activation=silu", "model.position.scaling=none")),
]  # fmt: skip
