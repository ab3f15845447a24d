"""DeepSeek V2."""

from tests.parity.tiny import SMALL, Case

LATENT = {
    **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_routed_experts": 8,
}  # fmt: skip

CASES = [
    Case("deepseek_v2", "groups, yarn", {
        **LATENT, "num_hidden_layers": 4, "q_lora_rank": 14, "attention_bias": True, "mlp_bias": True,
        "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "norm_topk_prob": True, "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1, "mscale": 0.6, "mscale_all_dim": 1.2,
        },
    }, (
        "model.attention.scale=null", "model.attention.norm_eps=1e-2", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.position.pairing=half", "model.position.scaling.attention_factor=null",
        "model.position.scaling.kind=none", "model.mlp.router.groups=null", "model.mlp.router.groups.by=top2",
        "model.mlp.router.factor=1.0", "model.mlp.router.normalise=true", "model.norm.eps=1e-6",
        "model.mlp.shared.bias=false",
    )),
    Case("deepseek_v2", "queries of the stream", {
        **LATENT, "q_lora_rank": None, "n_shared_experts": 1, "topk_method": "greedy", "n_group": 2, "topk_group": 1,
        "tie_word_embeddings": True,
    }, ("model.mlp.active=2", "model.mlp.router.score=sigmoid", "model.position.theta=5000")),
]  # fmt: skip
