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
        **DEEPSEEK, "num_key_value_heads": 4, "num_hidden_layers": 4, "first_k_dense_replace": 1, "head_dim": 12, "norm_topk_prob": True,
        "routed_scaling_factor": 1.7, "sliding_window": None,
    }),
    Case("dots1", "all-sparse-tied", {
        **DEEPSEEK, "num_key_value_heads": 4, "first_k_dense_replace": 0, "norm_topk_prob": False, "tie_word_embeddings": True,
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
    Case("llama4_text", "128-experts", {
        **LLAMA4, "num_hidden_layers": 4, "num_local_experts": 128, "use_qk_norm": False,
    }),
    Case("dbrx", "clipped", DBRX),
    Case("granitemoeshared", "scales", {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 3, "shared_intermediate_size": 20,
        "embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 13.0,
    }),
]  # fmt: skip

SIGMOID = 2
"""Value of `LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID` in llama-hparams.h."""
ROUTED_NUMBERS = {"expert_count": 5, "expert_used_count": 3, "expert_feed_forward_length": 16}
MIXTURES_NUMBERS: dict[str, dict[str, Any]] = {
    "dots1-one-dense": {
        **ROUTED_NUMBERS, "leading_dense_block_count": 1, "feed_forward_length": 48, "expert_shared_count": 2,
        "expert_weights_scale": 1.7, "expert_weights_norm": True, "expert_gating_func": SIGMOID,
    },
    "hunyuan_v1_moe-gqa": {
        "expert_count": 5, "expert_used_count": 2, "feed_forward_length": 48, "expert_feed_forward_length": 48,
        "expert_shared_feed_forward_length": 48,
    },
    "exaone_moe-windows": {
        **ROUTED_NUMBERS, "leading_dense_block_count": 2, "feed_forward_length": 48, "expert_shared_count": 2,
        "expert_shared_feed_forward_length": 32, "expert_gating_func": SIGMOID, "attention.sliding_window": 7,
        "attention.sliding_window_pattern": [True, True, True, False, True], "expert_weights_norm": True,
    },
    "glm4_moe-biases-qk-norm": {
        **ROUTED_NUMBERS, "leading_dense_block_count": 2, "expert_shared_count": 2, "expert_gating_func": SIGMOID,
        "rope.dimension_count": 8, "expert_weights_scale": 1.7,
    },
    "solar_open-biases": {
        **ROUTED_NUMBERS, "leading_dense_block_count": 0, "expert_shared_count": 2, "expert_gating_func": SIGMOID,
        "rope.dimension_count": 12, "expert_weights_scale": 1.7, "expert_weights_norm": False,
    },
    "minimax_m2-partial": {
        "expert_count": 5, "expert_used_count": 3, "expert_gating_func": SIGMOID, "feed_forward_length": 48,
        "expert_feed_forward_length": 48, "rope.dimension_count": 6, "attention.key_length": 12,
        "expert_weights_scale": None,
    },
    "llama4_text-every-second": {
        "expert_count": 5, "expert_used_count": 2, "interleave_moe_layer_step": 2, "feed_forward_length": 40,
        "expert_feed_forward_length": 24, "attention.sliding_window": None, "rope.dimension_count": 12,
    },
    "llama4_text-128-experts": {"interleave_moe_layer_step": 1, "expert_count": 128},
    "afmoe-gated": {
        **ROUTED_NUMBERS, "leading_dense_block_count": 1, "feed_forward_length": 48, "expert_shared_count": 2,
        "expert_gating_func": SIGMOID, "expert_weights_norm": True, "expert_weights_scale": 1.7,
        "attention.sliding_window": 7, "rope.dimension_count": 12,
    },
    "ernie4_5_moe-from-the-second": {
        **ROUTED_NUMBERS, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "feed_forward_length": 48,
        "expert_shared_feed_forward_length": 32,
    },
    "dbrx-clipped": {
        "expert_count": 5, "expert_used_count": 3, "feed_forward_length": 16, "attention.clamp_kqv": 0.5,
        "attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 2, "rope.freq_base": 50.0,
    },
    "granitemoeshared-scales": {
        "expert_count": 5, "expert_used_count": 3, "feed_forward_length": 48, "expert_shared_feed_forward_length": 20,
        "embedding_scale": 3.0, "residual_scale": 0.22, "logit_scale": 13.0, "attention.scale": 0.25,
    },
    "dots1-all-sparse-tied": {"leading_dense_block_count": 0, "expert_weights_norm": False},
}  # fmt: skip
"""Values that llama.cpp reads, by case."""

MIXTURES_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dots1", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    (
        "dots1",
        {"n_routed_experts": 6, "n_group": 3, "topk_group": 2},
        "model.mlp.router.groups.n is 3; allowed: no groups (null)",
    ),
    ("dots1", {"num_key_value_heads": 2}, "model.attention.n_kv_heads is 2; allowed: n_heads (4)"),
    ("llama4_text", {"num_hidden_layers": 2}, "model.n_layers is 2; allowed: 4 or more"),
    ("dots1", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
    ("dots1", {"sliding_window": 7, "max_window_layers": 2}, "model.attention.window is 7"),
    ("hunyuan_v1_moe", {"moe_topk": [2, 1, 2]}, "model.mlp.active is 1, 2; allowed: one number for all layers"),
    ("hunyuan_v1_moe", {"attention_bias": True}, "model.attention.out_bias is true; allowed: false"),
    ("exaone_moe", {"sliding_window_pattern": 3}, "model.attention.window is null in layer 2; allowed: a window"),
    ("exaone_moe", {"rope_parameters": YARN}, "model.position.scaling.kind is yarn; allowed: none"),
    (
        "exaone_moe",
        {"mlp_layer_types": ["sparse", "dense", "dense", "dense", "sparse"]},
        "model.mlp.kind is moe, gated, gated, gated, moe; allowed: first all dense layers",
    ),
    ("glm4_moe", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
    ("solar_open", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
    (
        "solar_open",
        {"n_routed_experts": 6, "n_group": 3, "topk_group": 2},
        "model.mlp.router.groups.n is 3; allowed: no groups (null)",
    ),
    ("minimax_m2", {"hidden_act": "gelu"}, "model.mlp.activation is gelu; allowed: silu"),
    ("llama4_text", {"attention_chunk_size": 6}, "model.attention.blocks.size is 6 in layer 0; allowed: 8192"),
    ("llama4_text", {"attn_scale": 0.5}, "model.attention.temperature is {beta: 0.5, length: 8192, offset: 1} in layer 3"),
    ("llama4_text", {"use_qk_norm": False}, "model.attention.qk_norm.kind is none in layer 0; allowed: rmsnorm"),
    ("llama4_text", {"no_rope_layer_interval": 3}, "model.position.kind is none in layer 2; allowed: rope"),
    ("llama4_text", {"moe_layers": [1, 2]}, "model.mlp.kind is gated, moe, moe, gated, gated, gated; allowed"),
    ("llama4_text", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    ("afmoe", {"mup_enabled": False}, "model.embedding.scale is 1.0; allowed: sqrt_d_model"),
    ("afmoe", {"global_attn_every_n_layers": 3}, "model.attention.window is null in layer 2; allowed: a window"),
    ("afmoe", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    (
        "ernie4_5_moe",
        {"moe_layer_end_index": 2},
        "model.mlp.kind is gated, moe, moe, gated; allowed: first all dense layers",
    ),
    (
        "ernie4_5_moe",
        {"moe_layer_interval": 2},
        "model.mlp.kind is gated, moe, gated, moe; allowed: first all dense layers",
    ),
    ("ernie4_5_moe", {"use_bias": True}, "model.head.bias is true; allowed: false"),
    (
        "dbrx",
        {"ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": None}},
        "model.mlp.router.normalise is false; allowed: true",
    ),
    ("granitemoeshared", {"shared_intermediate_size": 0}, "model.mlp.shared is null; allowed: a shared expert"),
    ("granitemoeshared", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
]  # fmt: skip
"""Changes of a case that llama.cpp cannot run, and the message for each."""
