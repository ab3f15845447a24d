"""K-EXAONE."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

CASES = [
    Case("exaone_moe", "groups, hybrid", {
        **MOE, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 7, "sliding_window_pattern": 3,
        "rms_norm_eps": 1e-2, "first_k_dense_replace": 2, "n_group": 4, "topk_group": 2, "num_shared_experts": 2,
        "routed_scaling_factor": 1.7,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }, (
        "model.layers.sliding.attention.window=8", "model.layers.full.position.kind=rope", "model.norm.eps=1e-5",
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5", "model.norm.placement=output",
        "model.position.scaling=none", "model.mlp.router.groups=null", "model.mlp.router.factor=1.0",
        "model.mlp.router.normalise=false", "model.mlp.router.score=softmax", "model.mlp.router.correction=null",
        "model.mlp.active=2", "model.mlp.shared=null",
    )),
    Case("exaone_moe", "listed types, tied", {
        **MOE, "num_hidden_layers": 4, "sliding_window": 7, "norm_topk_prob": False, "tie_word_embeddings": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
    }, ("model.mlp.router.normalise=true", "model.mlp.router.factor=1.0", "model.position.theta=100.0")),
    Case("exaone_moe", "never-turns", {
        **MOE, "sliding_window": 7, "layer_types": ["full_attention"] * 3,
    }, ("model.position=rope",)),
]  # fmt: skip
