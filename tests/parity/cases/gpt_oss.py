"""gpt-oss."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 12, "intermediate_size": 24}

CASES = [
    Case("gpt_oss", "yarn, windows", {
        **MOE, "num_hidden_layers": 4, "sliding_window": 7, "swiglu_limit": 0.9, "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
        },
    }, (
        "model.attention.sinks=false", "model.mlp.clamp=7.0", "model.mlp.up_offset=0.0", "model.mlp.activation=silu",
        "model.mlp.router.bias=false", "model.mlp.bias=false", "model.attention.out_bias=false", "model.norm.eps=1e-5",
        "model.position.scaling.truncate=true", "model.position.scaling.attention_factor=1.0",
        "model.mlp.router.normalise=false",
    )),
    Case("gpt_oss", "as the class has it", {
        **MOE, "attention_bias": False, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 9, "tie_word_embeddings": True,
    }, ("model.position.scaling.kind=none", "model.position.theta=10000", "model.attention.scale=0.5")),
]  # fmt: skip
