"""Cases with recurrent mixers for the tests of GGUF files, and the formulas of llama.cpp's converter for them."""

from typing import Any

import torch
from torch import Tensor

from tests.parity.tiny import SMALL, Case

MAMBA2 = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_heads": 6, "head_dim": 8, "state_size": 4}
JAMBA = {
    **SMALL, "num_hidden_layers": 5, "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_dt_rank": 7,
    "attn_layer_period": 3, "attn_layer_offset": 1,
}  # fmt: skip

GRANITE = {
    **SMALL, "num_hidden_layers": 4, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 4,
    "layer_types": ["mamba", "attention", "mamba", "attention"], "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 13.0, "rms_norm_eps": 1e-2,
}  # fmt: skip

BAMBA = {
    **SMALL, "num_hidden_layers": 4, "attn_layer_indices": [1, 3], "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_n_groups": 2, "mamba_d_state": 4,
}  # fmt: skip

LFM2_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 16}

FALCON_H1 = {
    **SMALL, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_ssm": 96, "mamba_n_groups": 2, "mamba_d_state": 4,
    "mamba_d_conv": 3, "head_dim": 12, "embedding_multiplier": 5.7, "lm_head_multiplier": 0.04,
    "mlp_multipliers": [0.9, 0.6], "key_multiplier": 0.4, "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.7, "ssm_in_multiplier": 1.6, "ssm_out_multiplier": 0.45,
    "ssm_multipliers": [0.35, 0.8, 1.4, 0.55, 0.3],
}  # fmt: skip
FOLDED = {
    "embedding.scale", "head.scale", "head.tied", "block.attention_multiplier", "block.mixer_multiplier",
    "block.mlp_multiplier",
}  # fmt: skip
"""Fields of Falcon-H1 that a GGUF file does not contain, because their factors are in its weights."""

RECURRENT = [
    Case("mamba2", "groups-tied", {**MAMBA2, "n_groups": 3, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": True}),
    Case("mamba2", "one-group", {**MAMBA2, "n_groups": 1, "conv_kernel": 3}),
    Case("jamba", "some-experts-tied", {
        **JAMBA, "num_experts": 5, "num_experts_per_tok": 3, "rms_norm_eps": 1e-2, "tie_word_embeddings": True,
    }),
    Case("jamba", "dense", {**JAMBA, "num_hidden_layers": 3, "num_experts": 1, "attn_layer_offset": 0}),
    Case("granitemoehybrid", "experts-rope", {
        **GRANITE, "num_local_experts": 5, "num_experts_per_tok": 3, "shared_intermediate_size": 20,
        "position_embedding_type": "rope", "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }),
    Case("granitemoehybrid", "one-expert", {
        **GRANITE, "num_local_experts": 1, "num_experts_per_tok": 1, "shared_intermediate_size": 20,
    }),
    Case("granitemoehybrid", "dense-tied", {
        **GRANITE, "num_local_experts": 0, "shared_intermediate_size": 40, "mamba_n_groups": 1, "mamba_d_conv": 3,
        "layer_types": ["attention", "mamba", "mamba", "mamba"], "tie_word_embeddings": True,
    }),
    Case("bamba", "all-rotated", {
        **BAMBA, "rms_norm_eps": 1e-2, "mamba_d_conv": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0},
    }),
    Case("bamba", "half-rotated-tied", {
        **BAMBA, "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "partial_rotary_factor": 0.5,
        },
    }),
    Case("lfm2", "untied", {
        **SMALL, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4, "block_multiple_of": 12,
        "block_ffn_dim_multiplier": 1.3, "norm_eps": 1e-2, "tie_word_embeddings": False,
    }),
    Case("lfm2", "yarn-tied", {
        **SMALL, "layer_types": ["full_attention", "conv", "full_attention"], "block_auto_adjust_ff_dim": False,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        },
    }),
    Case("lfm2_moe", "one-dense", {
        **SMALL, **LFM2_EXPERTS, "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "num_hidden_layers": 4, "num_dense_layers": 1, "conv_L_cache": 4, "norm_eps": 1e-2,
    }),
    Case("lfm2_moe", "all-sparse", {
        **SMALL, **LFM2_EXPERTS, "layer_types": ["full_attention", "conv", "conv"], "num_dense_layers": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }),
    Case("falcon_h1", "multipliers-norm", {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    Case("falcon_h1", "multipliers-tied", {**FALCON_H1, "tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    Case("falcon_h1", "plain", {
        **SMALL, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_ssm": 32, "mamba_d_state": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }),
]  # fmt: skip

RECURRENT_NUMBERS: dict[str, dict[str, Any]] = {
    "mamba2-groups-tied": {
        "ssm.conv_kernel": 4, "ssm.inner_size": 48, "ssm.state_size": 4, "ssm.time_step_rank": 6, "ssm.group_count": 3,
        "attention.head_count": 0, "feed_forward_length": 0, "attention.layer_norm_rms_epsilon": 1e-2,
    },
    "jamba-some-experts-tied": {
        "ssm.conv_kernel": 3, "ssm.inner_size": 64, "ssm.state_size": 5, "ssm.time_step_rank": 7,
        "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0, 0, 2], "feed_forward_length": 48,
        "expert_count": 5, "expert_used_count": 3,
    },
    "granitemoehybrid-experts-rope": {
        "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.inner_size": 64, "attention.head_count_kv": [0, 2, 0, 2],
        "feed_forward_length": 48, "expert_shared_feed_forward_length": 20, "rope.scaling.finetuned": True,
        "embedding_scale": 3.0, "attention.scale": 0.25, "residual_scale": 0.22, "logit_scale": 13.0,
    },
    "granitemoehybrid-dense-tied": {
        "feed_forward_length": 40, "attention.head_count_kv": [2, 0, 0, 0], "rope.scaling.finetuned": False,
        "rope.freq_base": None, "expert_count": None,
    },
    "bamba-all-rotated": {
        "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.inner_size": 64, "ssm.conv_kernel": 3,
        "attention.head_count_kv": [0, 2, 0, 2], "feed_forward_length": 48, "rope.scaling.finetuned": True,
        "rope.dimension_count": 8, "embedding_scale": None, "attention.scale": None,
    },
    "lfm2-untied": {
        "shortconv.l_cache": 4, "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0],
        "feed_forward_length": 48, "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-2,
    },
    "lfm2_moe-one-dense": {
        "shortconv.l_cache": 4, "attention.head_count_kv": [0, 2, 0, 2], "leading_dense_block_count": 1,
        "feed_forward_length": 48, "expert_feed_forward_length": 16, "expert_count": 5, "expert_used_count": 3,
        "expert_gating_func": 2, "expert_weights_norm": None, "expert_weights_scale": None,
    },
    "falcon_h1-multipliers-norm": {
        "ssm.conv_kernel": 3, "ssm.inner_size": 96, "ssm.state_size": 4, "ssm.time_step_rank": 6, "ssm.group_count": 2,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 12, "feed_forward_length": 48,
    },
}  # fmt: skip
"""Values that llama.cpp reads, by case."""

_DEFAULTS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
RECURRENT_LEFT_OUT = {
    "jamba-some-experts-tied": (*_DEFAULTS, "ssm.dt_b_c_rms", "expert_feed_forward_length"),
    "granitemoehybrid-experts-rope": (*_DEFAULTS, "rope.scaling.finetuned", "expert_feed_forward_length"),
    "granitemoehybrid-dense-tied": _DEFAULTS,
    "bamba-all-rotated": (*_DEFAULTS, "rope.scaling.finetuned"),
    "lfm2-yarn-tied": _DEFAULTS,
    "lfm2_moe-one-dense": _DEFAULTS,
    "falcon_h1-plain": _DEFAULTS,
}
"""Keys that llama.cpp's converter leaves out, or that older versions of it left out, by case."""

RECURRENT_WRONG = [
    ("mamba2-one-group", {"mamba2__ssm__time_step_rank": 0}, "mamba2.ssm.time_step_rank is 0"),
    ("jamba-dense", {"jamba__embedding_length": 0}, "jamba.embedding_length is 0"),
    ("granitemoehybrid-dense-tied", {"granitehybrid__block_count": "x"}, "granitehybrid.block_count is x"),
]
"""Cases, values that cannot be counts, and the message for each."""

RECURRENT_FURTHER = [
    ("jamba-dense", {"jamba__expert_count": 1, "jamba__expert_used_count": 1}, True),
    ("jamba-dense", {"jamba__expert_count": 2, "jamba__expert_used_count": 1}, False),
    ("granitemoehybrid-dense-tied", {
        "granitehybrid__expert_count": 0, "granitehybrid__expert_used_count": 0,
        "granitehybrid__expert_shared_feed_forward_length": 40, "granitehybrid__rope__freq_base": 50.0,
        "granitehybrid__rope__dimension_count": 8,
    }, True),
]  # fmt: skip
"""Cases, further keys, and whether archlab reads the file with them."""

RECURRENT_REFUSED = [
    ("mamba2", {"num_heads": 3, "expand": 1}, "model.mixer.inner_width is 24; allowed: 2 * d_model (48)"),
    ("mamba2", {"state_size": 5}, "model.mixer.d_state is 5; allowed: a divisor of inner_width (48)"),
    ("mamba2", {"use_conv_bias": False}, "model.mixer.conv_bias is false; allowed: true"),
    ("mamba2", {"use_bias": True}, "model.mixer.in_bias is true; allowed: false"),
    ("mamba2", {"time_step_limit": [0.001, 0.1]}, "model.mixer.dt_min is 0.001; allowed: 0.0"),
    ("jamba", {"mamba_expand": 3}, "model.mixer.inner_width is 96; allowed: 2 * d_model (64)"),
    ("jamba", {"mamba_proj_bias": True}, "model.mixer.in_bias is true; allowed: false"),
    ("jamba", {"attn_layer_offset": 0, "attn_layer_period": 1}, "model.attention is in 5 of 5 layers"),
    ("granitemoehybrid", {"mamba_conv_bias": False}, "model.mixer.conv_bias is false; allowed: true"),
    ("granitemoehybrid", {"time_step_limit": [0.0, 0.1]}, "model.mixer.dt_max is 0.1; allowed: null"),
    ("granitemoehybrid", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    ("granitemoehybrid", {"layer_types": ["mamba"] * 4}, "model.attention is in 0 of 4 layers"),
    ("bamba", {"mamba_expand": 3, "mamba_d_head": 24}, "model.mixer.inner_width is 96; allowed: 2 * d_model (64)"),
    ("bamba", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    ("bamba", {"mlp_bias": True}, "model.mlp.bias is true; allowed: false"),
    ("bamba", {"mamba_conv_bias": False}, "model.mixer.conv_bias is false; allowed: true"),
    ("bamba", {"time_step_limit": [0.001, 0.1]}, "model.mixer.dt_min is 0.001; allowed: 0.0"),
    ("bamba", {"attn_layer_indices": []}, "model.attention is in 0 of 4 layers"),
    ("lfm2", {"conv_bias": True}, "model.mixer.bias is true; allowed: false"),
    ("lfm2", {"layer_types": ["full_attention"] * 3}, "model.attention is in 3 of 3 layers"),
    ("lfm2_moe", {"tie_word_embeddings": False}, "model.head.tied is false; allowed: true"),
    ("lfm2_moe", {"conv_bias": True}, "model.mixer.bias is true; allowed: false"),
    ("lfm2_moe", {"norm_topk_prob": False}, "model.mlp.router.normalise is false; allowed: true"),
    ("lfm2_moe", {"routed_scaling_factor": 1.5}, "model.mlp.router.factor is 1.5; allowed: 1.0"),
    ("lfm2_moe", {"use_expert_bias": False}, "model.mlp.router.correction is null; allowed: a correction"),
    ("falcon_h1", {"mamba_norm_before_gate": True}, "model.mixer.norm.gate is after; allowed: before"),
    ("falcon_h1", {"mamba_conv_bias": False}, "model.mixer.conv_bias is false; allowed: true"),
    ("falcon_h1", {"projectors_bias": True}, "model.mixer.out_bias is true; allowed: false"),
    ("falcon_h1", {"mlp_bias": True}, "model.mlp.bias is true; allowed: false"),
]
"""Changes of a case that llama.cpp cannot run, and the message for each."""


def converted_recurrent(case: Case, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that llama.cpp's converter makes of a published one, by the name that its name map gets.

    See `Mamba2Model.modify_tensors` in conversion/mamba.py, conversion/jamba.py,
    conversion/granite.py and conversion/lfm2.py. The name `blk.0.ffn_norm` of Falcon-H1 has no suffix there either.
    """
    groups = case.hf.get("n_groups", case.hf.get("mamba_n_groups", 1))
    if case.model_type == "falcon_h1":
        tensor = _multiplied(case, name, tensor)
    heads = {"q_proj": 4, "k_proj": case.hf.get("num_key_value_heads", 4)}
    match name.split(".")[-2:]:
        case [("q_proj" | "k_proj") as part, "weight"] if case.model_type == "granitemoehybrid":  # undo_permute
            return {name: tensor.unflatten(0, (heads[part], 2, -1)).swapaxes(1, 2).reshape(tensor.shape)}
        case [("q_proj" | "k_proj") as part, "weight"] if case.model_type == "bamba":
            return {name: _rotated_part_permuted(case, tensor, heads[part])}
        case ["input_linear", "weight"]:  # the shared expert, or the only MLP of a layer
            kind = "shared_expert" if case.hf["num_local_experts"] else "mlp"
            layer = ".".join(name.split(".")[:3])
            own = f"{layer}.mlp.{kind}." if kind == "shared_expert" else f"{layer}.mlp."
            gate, up = tensor.chunk(2)
            return {f"{own}gate_proj.weight": gate, f"{own}up_proj.weight": up}
        case ["output_linear", "weight"] if not case.hf["num_local_experts"]:
            return {name.replace("shared_mlp.output_linear", "mlp.down_proj"): tensor}
        case [_, "dt_bias"]:
            return {f"{name.removesuffix('dt_bias')}dt_proj.bias": tensor}
        case ["conv1d" | "conv", "weight"]:
            return {name: tensor.squeeze()}
        case [_, "A_log"]:
            return {name: -tensor.exp().reshape(len(tensor), -1)}
        case [_, "D"] if case.model_type != "jamba":
            return {name: tensor.reshape(-1, 1)}
        case ["norm", "weight"] if ".mixer." in name or ".mamba." in name:
            return {name: tensor.reshape(groups, -1)}
        case _:
            return {name: tensor}


def _rotated_part_permuted(case: Case, tensor: Tensor, n_heads: int) -> Tensor:
    """Permute the rows of each head that RoPE rotates, as `LlamaModel.permute` in conversion/llama.py does.

    llama.cpp's converter permutes whole heads, even if RoPE rotates only half of each head. Its files then compute
    another model than Bamba.
    """
    width = len(tensor) // n_heads
    n_rotated = int(width * case.hf["rope_parameters"]["partial_rotary_factor"])
    rows = [h * width + i * n_rotated // 2 + j for h in range(n_heads) for j in range(n_rotated // 2) for i in (0, 1)]
    order = [h * width + i for h in range(n_heads) for i in range(width)]
    for h in range(n_heads):
        order[h * width : h * width + n_rotated] = rows[h * n_rotated : (h + 1) * n_rotated]
    return tensor[order]


def _multiplied(case: Case, name: str, tensor: Tensor) -> Tensor:
    """Multiply a tensor of Falcon-H1 as conversion/falcon_h1.py does."""
    factors = {"ssm_multipliers": [1.0] * 5, "mlp_multipliers": [1.0, 1.0], **case.hf}
    gate, down = factors["mlp_multipliers"]
    attention = factors.get("attention_in_multiplier", 1.0)
    by_name = {
        "down_proj": down, "gate_proj": gate, "q_proj": attention, "v_proj": attention,
        "k_proj": attention * factors.get("key_multiplier", 1.0),
        "o_proj": factors.get("attention_out_multiplier", 1.0), "out_proj": factors.get("ssm_out_multiplier", 1.0),
        "lm_head": factors.get("lm_head_multiplier", 1.0), "embed_tokens": factors.get("embedding_multiplier", 1.0),
    }  # fmt: skip
    part = name.split(".")[-2]
    if part != "in_proj":
        return tensor * by_name.get(part, 1.0)
    width, of_groups = case.hf["mamba_d_ssm"], case.hf.get("mamba_n_groups", 1) * case.hf["mamba_d_state"]
    sizes = [width, width, of_groups, of_groups, case.hf["mamba_n_heads"]]
    rows = [torch.full((n, 1), x) for n, x in zip(sizes, factors["ssm_multipliers"], strict=True)]
    return tensor * factors.get("ssm_in_multiplier", 1.0) * torch.cat(rows)
