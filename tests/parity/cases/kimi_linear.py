"""Kimi Linear."""

from typing import Any

from tests.parity.cases.deepseek_v2 import LATENT
from tests.parity.tiny import Case

SIZES: dict[str, Any] = {
    **{key: value for key, value in LATENT.items() if key != "n_routed_experts"}, "num_experts": 8,
    "linear_head_dim": 8, "linear_num_heads": 3, "linear_conv_kernel_dim": 3,
}  # fmt: skip
MIXER = "model.layers.recurrent.mixer"

CASES = [
    Case("kimi_linear", "by-type", {
        **SIZES, "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2, "q_lora_rank": 14,
        "attention_bias": True, "num_expert_group": 4, "topk_group": 2, "num_shared_experts": 2, "rms_norm_eps": 1e-2,
        "routed_scaling_factor": 1.7, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
    }, (
        "model.norm.eps=1e-5", "model.attention.norm_eps=1e-2", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.position.kind=rope", "model.mlp.router.groups=null",
        "model.mlp.router.groups.by=max", "model.mlp.router.factor=1.0", "model.mlp.router.correction=null",
        "model.mlp.router.score=softmax", "model.mlp.router.normalise=false",
    )),
    Case("kimi_linear", "as published", {
        **{key: value for key, value in SIZES.items() if not key.startswith("linear_")}, "num_hidden_layers": 5,
        "linear_attn_config": {
            "full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "head_dim": 6, "num_heads": 2,
            "short_conv_kernel_size": 4,
        },
        # All experts are active, so that bfloat16 does not have to choose between nearly equal scores.
        "first_k_dense_replace": 2, "moe_renormalize": False, "head_dim": 8, "num_experts_per_tok": 8,
    }, (
        "model.mlp.router.normalise=true", "model.mlp.active=2",
    )),
    Case("kimi_linear", "implied types", {**SIZES, "num_hidden_layers": 5}, ("model.layers.recurrent.mixer=none",)),
]  # fmt: skip
