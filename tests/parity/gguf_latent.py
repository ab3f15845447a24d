"""Cases with latent attention for the tests of GGUF files, and the formulas of llama.cpp's converter for them."""

from typing import Any

from torch import Tensor

from tests.parity.tiny import SMALL, Case

HEADS = {
    **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "rms_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS = {**HEADS, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 2}
YARN = {
    "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.6,
    "mscale_all_dim": 0.6,
}  # fmt: skip

LATENT = [
    Case("deepseek_v2", "yarn-one-dense", {
        **EXPERTS, "num_hidden_layers": 4, "q_lora_rank": 14, "first_k_dense_replace": 1, "rope_parameters": YARN,
        "routed_scaling_factor": 1.7,
    }),
    Case("deepseek_v2", "wide-queries-tied", {
        **EXPERTS, "q_lora_rank": None, "n_shared_experts": 1, "tie_word_embeddings": True,
    }),
    Case("deepseek_v3", "groups-yarn", {
        **EXPERTS, "num_hidden_layers": 4, "q_lora_rank": 14, "n_group": 4, "topk_group": 2,
        "first_k_dense_replace": 2, "routed_scaling_factor": 1.7, "rope_parameters": YARN,
    }),
    Case("deepseek_v3", "wide-queries", {
        **EXPERTS, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "first_k_dense_replace": 0,
    }),
    Case("youtu", "yarn-tied", {**HEADS, "q_lora_rank": 14, "rope_parameters": YARN}),
    Case("youtu", "wide-queries-untied", {
        **HEADS, "q_lora_rank": None, "tie_word_embeddings": False, "pad_token_id": None,
    }),
]  # fmt: skip

LATENT_NUMBERS: dict[str, dict[str, Any]] = {
    "deepseek_v2-yarn-one-dense": {
        "attention.head_count": 4, "attention.head_count_kv": 1, "attention.key_length": 20,
        "attention.value_length": 12, "attention.key_length_mla": 14, "attention.value_length_mla": 10,
        "attention.q_lora_rank": 14, "attention.kv_lora_rank": 12, "rope.dimension_count": 8,
        "rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.06, "rope.scaling.attn_factor": None,
        "leading_dense_block_count": 1, "expert_shared_count": 2, "expert_gating_func": 1,
        "expert_weights_scale": 1.7, "expert_group_count": None, "feed_forward_length": 48,
        "expert_feed_forward_length": 24,
    },
    "deepseek_v3-groups-yarn": {
        "expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2, "expert_weights_norm": True,
        "rope.scaling.type": "yarn", "leading_dense_block_count": 2,
    },
    "youtu-wide-queries-untied": {
        "leading_dense_block_count": 3, "expert_feed_forward_length": 48, "expert_shared_count": 0,
        "expert_count": None, "attention.q_lora_rank": 0,
    },
}  # fmt: skip
"""Values that llama.cpp reads, by case."""

LATENT_LEFT_OUT = {
    "deepseek_v2-yarn-one-dense": ("expert_weights_norm", "expert_shared_feed_forward_length"),
    "deepseek_v2-wide-queries-tied": ("expert_gating_func", "expert_weights_norm", "attention.q_lora_rank"),
    "deepseek_v3-wide-queries": ("expert_weights_norm", "attention.q_lora_rank"),
}
"""Keys that llama.cpp's converter leaves out, or that older versions of it left out, by case."""

LATENT_REFUSED = [
    ("deepseek_v2", {"rms_norm_eps": 1e-5}, "model.norm.eps is 1e-05; allowed: model.attention.norm_eps (1e-06)"),
    ("deepseek_v2", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    ("deepseek_v2", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
    ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
     "model.mlp.router.groups.n is 4; allowed: no groups (null)"),
    ("deepseek_v2", {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}},
     "model.position.scaling.kind is linear; allowed: none, yarn"),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale": 0.7}}, "model.position.scaling.attention_factor is 1.0"),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale": None, "mscale_all_dim": None, "attention_factor": 1.0}},
     "model.attention.scale is 0.267"),
    ("deepseek_v3", {"rope_interleave": False}, "model.position.pairing is half; allowed: interleaved"),
    ("deepseek_v3", {"num_hidden_layers": 26, "hidden_size": 8, "intermediate_size": 8},
     "model.attention.q_rank is 14 in a model of 26 layers; allowed: null"),
    ("youtu", {"hidden_act": "gelu"}, "model.mlp.activation is gelu; allowed: silu"),
]  # fmt: skip
"""Changes of a case that llama.cpp cannot run, and the message for each."""


def parts_of_kv_b(case: Case, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the two tensors that `modify_tensors` of DeepseekV2Model in conversion/deepseek.py makes of `kv_b_proj`."""
    keys, values = case.hf["qk_nope_head_dim"], case.hf["v_head_dim"]
    per_head = tensor.view(case.hf["num_attention_heads"], keys + values, tensor.shape[-1])
    return {
        name.replace("kv_b_proj", "k_b_proj"): per_head[:, :keys].transpose(1, 2),
        name.replace("kv_b_proj", "v_b_proj"): per_head[:, keys:],
    }
