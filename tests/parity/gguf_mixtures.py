"""Configs of mixtures of experts for the tests of GGUF files."""

from typing import Any

from tests.parity.tiny import SMALL, Case

ROUTED: dict[str, Any] = {"num_experts_per_tok": 3, "moe_intermediate_size": 16, "rms_norm_eps": 1e-3}
DEEPSEEK = {**SMALL, **ROUTED, "n_routed_experts": 5, "n_shared_experts": 2, "n_group": 1, "topk_group": 1}
ERNIE = {"moe_num_experts": 5, "moe_k": 3, "moe_num_shared_experts": 2}
HUNYUAN = {**SMALL, "num_experts": 5, "moe_topk": 3, "rms_norm_eps": 1e-3}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
DBRX: dict[str, Any] = {
    "vocab_size": 61, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 50.0},
    "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 5, "moe_top_k": 3, "hidden_size": 32},
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
}  # fmt: skip
LLAMA4 = {**SMALL, "intermediate_size": 24, "intermediate_size_mlp": 40, "num_local_experts": 5, "head_dim": 12}

MIXTURES = [
    Case("dots1", "one-dense", {
        **DEEPSEEK, "num_hidden_layers": 4, "first_k_dense_replace": 1, "head_dim": 12, "norm_topk_prob": True,
        "routed_scaling_factor": 1.7, "sliding_window": None,
    }),
    Case("dots1", "all-sparse-tied", {
        **DEEPSEEK, "first_k_dense_replace": 0, "norm_topk_prob": False, "tie_word_embeddings": True,
        "max_window_layers": 3,
    }),
    Case("hunyuan_v1_moe", "gqa", {**HUNYUAN, "head_dim": 12, "moe_topk": [2, 2, 2]}),
    Case("hunyuan_v1_moe", "yarn-tied", {
        **HUNYUAN, "head_dim": 8, "num_key_value_heads": 4, "tie_word_embeddings": True, "rope_parameters": YARN,
    }),
    Case("exaone_moe", "windows", {
        **SMALL, **ROUTED, "num_hidden_layers": 5, "num_experts": 5, "num_shared_experts": 2, "head_dim": 12,
        "first_k_dense_replace": 2, "sliding_window": 7, "routed_scaling_factor": 1.7,
    }),
    Case("glm4_moe", "biases-qk-norm", {
        **DEEPSEEK, "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 2,
        "routed_scaling_factor": 1.7,
    }),
    Case("glm4_moe", "partial-tied", {
        **DEEPSEEK, "head_dim": 16, "norm_topk_prob": False, "first_k_dense_replace": 0, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
    }),
    Case("solar_open", "biases", {
        **DEEPSEEK, "head_dim": 12, "attention_bias": True, "norm_topk_prob": False, "routed_scaling_factor": 1.7,
    }),
    Case("solar_open", "yarn-tied", {
        **DEEPSEEK, "head_dim": 8, "n_shared_experts": 1, "tie_word_embeddings": True, "rope_parameters": YARN,
    }),
    Case("minimax_m2", "partial", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 12, "rotary_dim": 6,
        "rms_norm_eps": 1e-2,
    }),
    Case("minimax_m2", "yarn-tied", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 8, "tie_word_embeddings": True,
        "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    }),
    Case("afmoe", "gated", {
        **SMALL, **ROUTED, "num_hidden_layers": 5, "num_experts": 5, "num_shared_experts": 2, "num_dense_layers": 1,
        "head_dim": 12, "route_scale": 1.7, "mup_enabled": True, "sliding_window": 7, "tie_word_embeddings": True,
    }),
    Case("ernie4_5_moe", "from-the-second", {
        **SMALL, **ROUTED, **ERNIE, "num_hidden_layers": 4, "head_dim": 12, "tie_word_embeddings": False,
    }),
    Case("ernie4_5_moe", "no-shared", {
        **SMALL, **ROUTED, **ERNIE, "num_hidden_layers": 5, "moe_num_shared_experts": 0,
    }),
    Case("llama4_text", "every-second", {
        **LLAMA4, "num_hidden_layers": 6, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
        "rms_norm_eps": 1e-2, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }),
    Case("llama4_text", "128-experts", {**LLAMA4, "num_local_experts": 128, "use_qk_norm": False}),
    Case("dbrx", "clipped", DBRX),
    Case("granitemoeshared", "scales", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 3, "shared_intermediate_size": 20,
        "embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 13.0,
    }),
]  # fmt: skip
