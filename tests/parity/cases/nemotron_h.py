"""Nemotron-H and Nemotron 3 Nano."""

from typing import Any

from tests.parity.tiny import SMALL, Case

MAMBA: dict[str, Any] = {
    "head_dim": 12, "mamba_num_heads": 6, "mamba_head_dim": 10, "ssm_state_size": 5, "n_groups": 2, "conv_kernel": 3,
    "chunk_size": 16, "time_step_min": 1e-9,
}  # fmt: skip

EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 28,
}  # fmt: skip

CASES = [
    Case("nemotron_h", "every branch", {
        **SMALL, **MAMBA, **EXPERTS, "layer_norm_epsilon": 1e-2, "use_bias": True, "mlp_bias": True,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
        "num_hidden_layers": 5, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "use_conv_bias": False,
    }, (
        "model.norm.eps=1e-5", "model.mixer.norm.eps=1e-5",
        "model.mixer.in_bias=false", "model.mixer.out_bias=false",
        "model.layers.recurrent.mixer.norm.gate=after", "model.layers.dense.mlp.bias=false",
        "model.layers.dense.mlp.activation=relu", "model.layers.sparse.mlp.activation=relu",
        "model.layers.sparse.mlp.shared.bias=false", "model.layers.sparse.mlp.router.factor=1.0",
        "model.layers.sparse.mlp.router.score=softmax", "model.layers.sparse.mlp.router.groups=null",
        "model.position.kind=rope",
    )),
    Case("nemotron_h", "no MLP", {
        **SMALL, **MAMBA, **EXPERTS, "layers_block_type": ["linear_attention", "full_attention", "moe"],
        "num_key_value_heads": 4, "norm_topk_prob": False, "mlp_hidden_act": "silu",
    }, (
        "model.layers.recurrent.mixer.conv_bias=false", "model.layers.sparse.mlp.router.normalise=true",
        "model.layers.sparse.mlp.shared=null",
    )),
    Case("nemotron_h", "experts in a latent space", {
        **SMALL, **MAMBA, **EXPERTS, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "moe_latent_size": 16, "mlp_bias": True, "routed_scaling_factor": 5.0,
    }, ("model.layers.sparse.mlp.latent.bias=false", "model.layers.sparse.mlp.router.factor=1.0")),
    # With a cache, the published code does not clamp the step size of single tokens.
    Case("nemotron_h", "steps", {
        **SMALL, **MAMBA, "layers_block_type": ["mlp", "linear_attention", "full_attention"], "time_step_min": 0.8,
    }, ("model.layers.recurrent.mixer.dt_min=0.0",), cached=False),
]  # fmt: skip
