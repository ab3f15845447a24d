"""A.X K1."""

from tests.parity.cases.deepseek_v2 import LATENT
from tests.parity.tiny import Case

CASES = [
    Case("axk1", "groups, yarn, listed types", {
        **LATENT, "num_hidden_layers": 4, "q_lora_rank": 14, "attention_bias": True, "n_group": 4, "topk_group": 2,
        "n_shared_experts": 2, "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-2,
        "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1, "mscale": 0.6, "mscale_all_dim": 1.2,
        },
    }, (
        "model.block.mlp_output_norm=false", "model.layers.dense.block.mlp_output_norm=true",
        "model.attention.scale=null", "model.attention.norm_eps=1e-2", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.norm.eps=1e-6", "model.layers.pattern=[dense, sparse]",
        "model.position.pairing=half", "model.position.scaling.attention_factor=null",
        "model.position.scaling.kind=none", "model.mlp.router.groups=null", "model.mlp.router.groups.by=max",
        "model.mlp.router.factor=1.0", "model.mlp.router.correction=null", "model.mlp.router.score=softmax",
        "model.mlp.router.normalise=false", "model.mlp.active=2", "model.mlp.shared=null",
    )),
    Case("axk1", "older keys, halves", {
        **LATENT, "num_hidden_layers": 4, "q_lora_rank": 10, "rope_interleave": False, "norm_topk_prob": False,
        "tie_word_embeddings": True, "n_group": 1, "topk_group": 1, "moe_layer_freq": 2,
    }, (
        "model.position.pairing=interleaved", "model.mlp.router.normalise=true", "model.mlp.router.factor=1.0",
        "model.layers.dense.mlp.kind=moe",
    )),
    Case("axk1", "all sparse", {
        **LATENT, "q_lora_rank": 10, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
    }, ("model.block.mlp_output_norm=false",)),
]  # fmt: skip
