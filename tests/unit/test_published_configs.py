"""Presets equal what archlab reads from the published config.json of the same model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from archlab.exchange.configs import load_config
from archlab.hf.family import differing
from archlab.pricing.params import parameters

MAMBA, ATTENTION, LINEAR, SLIDING, FULL = (
    "mamba", "attention", "linear_attention", "sliding_attention", "full_attention"
)  # fmt: skip

GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_multiplier": 0.0078125, "embedding_multiplier": 12, "hidden_act": "silu", "init_method": "mup",
    "initializer_range": 0.1, "layer_types": [*[MAMBA] * 5, ATTENTION, *[MAMBA] * 4] * 4, "mamba_chunk_size": 256,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2,
    "mamba_n_groups": 1, "mamba_proj_bias": False, "max_position_embeddings": 131072,
    "model_type": "granitemoehybrid", "normalization_function": "rmsnorm", "num_hidden_layers": 40,
    "output_router_logits": False, "position_embedding_type": "nope", "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000, "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": True, "vocab_size": 100352,
}  # fmt: skip

GEMMA_4: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "enable_moe_block": False,
    "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "initializer_range": 0.02,
    "max_position_embeddings": 262144, "model_type": "gemma4_text", "num_kv_shared_layers": 0, "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "sliding_window": 1024, "tie_word_embeddings": True, "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False, "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
    "rope_parameters": {
        FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    },
}  # fmt: skip

WITH_PICTURES: dict[str, dict[str, Any]] = {
    "qwen3.5-9b": {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"},
    "ministral-3-8b": {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"},
    "gemma-4-31b": {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"},
    "gemma-4-26b-a4b": {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"},
}
"""Keys around the config of the text model."""

PUBLISHED: dict[str, dict[str, Any]] = {
    "granite-4.0-h-small": GRANITE | {
        "hidden_size": 4096, "intermediate_size": 768, "logits_scaling": 16, "mamba_n_heads": 128,
        "num_attention_heads": 32, "num_experts_per_tok": 10, "num_key_value_heads": 8, "num_local_experts": 72,
        "shared_intermediate_size": 1536,
    },
    "granite-4.0-h-tiny": GRANITE | {
        "hidden_size": 1536, "intermediate_size": 512, "logits_scaling": 6, "mamba_n_heads": 48,
        "num_attention_heads": 12, "num_experts_per_tok": 6, "num_key_value_heads": 4, "num_local_experts": 64,
        "shared_intermediate_size": 1024,
    },
    "falcon-h1-7b": {
        "architectures": ["FalconH1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.10416666666666667, "attn_layer_indices": None,
        "embedding_multiplier": 5.656854249492381, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
        "initializer_range": 0.02, "intermediate_size": 12288, "key_multiplier": 0.030690398488999456,
        "lm_head_multiplier": 0.013020833333333334, "mamba_chunk_size": 128, "mamba_conv_bias": True,
        "mamba_d_conv": 4, "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_expand": 2,
        "mamba_n_groups": 1, "mamba_n_heads": 24, "mamba_norm_before_gate": False, "mamba_proj_bias": False,
        "mamba_rms_norm": True, "mamba_use_mlp": True, "max_position_embeddings": 262144, "mlp_bias": False,
        "mlp_multipliers": [0.2946278254943948, 0.032552083333333336], "model_type": "falcon_h1",
        "num_attention_heads": 12, "num_hidden_layers": 44, "num_key_value_heads": 2, "projectors_bias": False,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000000.0,
        "ssm_in_multiplier": 0.4166666666666667,
        "ssm_multipliers": [0.3535533905932738, 0.25, 0.1767766952966369, 0.5, 0.3535533905932738],
        "ssm_out_multiplier": 0.11785113019775793, "tie_word_embeddings": False, "vocab_size": 130048,
    },
    # RoPE as in the chat models. In the file of the base model, rope_parameters is null.
    "olmo-hybrid-7b": {
        "architectures": ["OlmoHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 3840, "initializer_range": 0.02, "intermediate_size": 11008,
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 8, "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 96, "linear_num_key_heads": 30,
        "linear_num_value_heads": 30, "linear_value_head_dim": 192, "max_position_embeddings": 65536,
        "model_type": "olmo_hybrid", "num_attention_heads": 30, "num_hidden_layers": 32, "num_key_value_heads": 30,
        "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": None, "rope_type": "default"},
        "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "qwen3.5-9b": {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 8, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": [],
        "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "vocab_size": 248320,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
            "rope_theta": 10000000, "rope_type": "default",
        },
    },
    "solar-open-100b": {
        "architectures": ["SolarOpenForCausalLM"], "first_k_dense_replace": 0, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 10240, "max_position_embeddings": 131072, "model_type": "solar_open",
        "moe_intermediate_size": 1280, "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 8,
        "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 2.0, "original_max_position_embeddings": 65536, "type": "yarn"},
        "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "vocab_size": 196608,
    },
    "k-exaone-236b-a23b": {
        "architectures": ["ExaoneMoEForCausalLM"], "attention_dropout": 0.0, "first_k_dense_replace": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144, "initializer_range": 0.02,
        "intermediate_size": 18432, "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 12,
        "max_position_embeddings": 262144, "model_type": "exaone_moe", "moe_intermediate_size": 2048, "n_group": 1,
        "norm_topk_prob": True, "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "num_shared_experts": 1,
        "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "sliding_window": 128,
        "sliding_window_pattern": "LLLG", "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
        "vocab_size": 153600,
    },
    "hy3-preview": {
        "architectures": ["HYV3ForCausalLM"], "enable_attention_fp32_softmax": False, "enable_lm_head_fp32": True,
        "enable_moe_fp32_combine": False, "expert_hidden_dim": 1536, "first_k_dense_replace": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.006, "intermediate_size": 13312,
        "max_position_embeddings": 262144, "model_type": "hy_v3", "moe_intermediate_size": 1536,
        "moe_router_enable_expert_bias": True, "moe_router_use_sigmoid": True, "num_attention_heads": 64,
        "num_experts": 192, "num_experts_per_tok": 8, "num_hidden_layers": 80, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "num_shared_experts": 1, "output_router_logits": True, "qk_norm": True,
        "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
        "route_norm": True, "router_scaling_factor": 2.826, "tie_word_embeddings": False, "use_grouped_mm": False,
        "vocab_size": 120832,
    },
    "flexolmo-7x7b": {
        "architectures": ["FlexOlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_type": "flex_olmo", "norm_topk_prob": False,
        "num_attention_heads": 32, "num_experts": 7, "num_experts_per_tok": 7, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 500000, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "glm-4.7-flash": {
        "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240,
        "kv_lora_rank": 512, "max_position_embeddings": 202752, "model_type": "glm4_moe_lite",
        "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
        "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0, "q_lora_rank": 768,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 1000000, "routed_scaling_factor": 1.8, "tie_word_embeddings": False, "topk_group": 1,
        "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880,
    },
    "youtu-llm-2b": {
        "architectures": ["YoutuForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "kv_lora_rank": 512,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "youtu", "num_attention_heads": 16,
        "num_hidden_layers": 32, "num_key_value_heads": 16, "q_lora_rank": 1536, "qk_head_dim": 192,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": True,
        "rope_parameters": {"rope_theta": 1600000, "rope_type": "default"}, "tie_word_embeddings": True,
        "v_head_dim": 128, "vocab_size": 128256,
    },
    "jais-2-8b": {
        "architectures": ["Jais2ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3328, "initializer_range": 0.02, "intermediate_size": 26624,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 8192, "mlp_bias": True, "model_type": "jais2",
        "num_attention_heads": 26, "num_hidden_layers": 32, "num_key_value_heads": 26, "pretraining_tp": 1,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "tie_word_embeddings": False,
        "vocab_size": 150272,
    },
    "hyperclovax-14b": {
        "architectures": ["HyperCLOVAXForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_multiplier": 0.0078125, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "embedding_multiplier": 10.0,
        "end_token_id": 100257, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
        "initializer_range": 0.012727922061357854, "intermediate_size": 14336, "logits_scaling": 0.125,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "hyperclovax", "num_attention_heads": 48,
        "num_hidden_layers": 38, "num_key_value_heads": 8, "pretraining_tp": 1, "resid_pdrop": 0.0,
        "residual_multiplier": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000,
        "summary_first_dropout": 0.0, "tie_word_embeddings": False, "use_post_norm": True, "vocab_size": 110592,
    },
    "vaultgemma-1b": {
        "architectures": ["VaultGemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
        "intermediate_size": 6912, "layer_types": [FULL] * 26, "max_position_embeddings": 1024,
        "model_type": "vaultgemma", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 512,
        "vocab_size": 256000,
    },
    "ministral-3-8b": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 262144,
        "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "sliding_window": None, "vocab_size": 131072,
        "rope_parameters": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
            "rope_type": "yarn", "type": "yarn",
        },
    },
    "gemma-4-31b": GEMMA_4 | {
        "expert_intermediate_size": None, "hidden_size": 5376, "intermediate_size": 21504,
        "layer_types": [*[SLIDING] * 5, FULL] * 10, "num_attention_heads": 32, "num_experts": None,
        "num_global_key_value_heads": 4, "num_hidden_layers": 60, "num_key_value_heads": 16, "top_k_experts": None,
    },
    "gemma-4-26b-a4b": GEMMA_4 | {
        "enable_moe_block": True, "hidden_size": 2816, "intermediate_size": 2112,
        "layer_types": [*[SLIDING] * 5, FULL] * 5, "moe_intermediate_size": 704, "num_attention_heads": 16,
        "num_experts": 128, "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8,
        "top_k_experts": 8,
    },
}  # fmt: skip
"""config.json files as published, without keys about tokens and versions."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_preset_is_the_published_model(name: str, tmp_path: Path) -> None:
    around = WITH_PICTURES.get(name)
    text = PUBLISHED[name]
    values = {**around, "text_config": text, "vision_config": {}} if around else text
    (tmp_path / "config.json").write_text(json.dumps(values))
    read, preset = load_config(str(tmp_path)).model, load_config(name).model
    assert differing(read, preset) == {}
    assert parameters(read) == parameters(preset)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_its_size_is_that_of_the_class_in_transformers(name: str) -> None:
    config = CONFIG_MAPPING[PUBLISHED[name]["model_type"]].from_dict(PUBLISHED[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == parameters(load_config(name).model).total
