"""DeepSeek V3."""

from tests.parity.cases.deepseek_v2 import LATENT
from tests.parity.tiny import Case

CASES = [
    Case("deepseek_v3", "groups, yarn", {
        **LATENT, "num_hidden_layers": 4, "q_lora_rank": 14, "attention_bias": True, "n_group": 4, "topk_group": 2,
        "n_shared_experts": 2, "first_k_dense_replace": 2, "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1, "mscale": 0.6, "mscale_all_dim": 1.2,
        },
    }, (
        "model.attention.scale=null", "model.attention.norm_eps=1e-2", "model.attention.qkv_bias=false",
        "model.position.pairing=half", "model.position.scaling.attention_factor=null", "model.position.scaling.kind=none",
        "model.mlp.router.groups=null", "model.mlp.router.groups.by=max", "model.mlp.router.factor=1.0",
        "model.mlp.router.correction=null", "model.mlp.router.score=softmax", "model.mlp.router.normalise=false",
    )),
    Case("deepseek_v3", "halves, queries of the stream", {
        **LATENT, "q_lora_rank": None, "rope_interleave": False, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "first_k_dense_replace": 0, "tie_word_embeddings": True,
    }, ("model.position.pairing=interleaved", "model.mlp.router.normalise=true", "model.mlp.router.factor=1.0")),
]  # fmt: skip
