"""ERNIE 4.5, mixtures of experts."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 24}

CASES = [
    Case("ernie4_5_moe", "biases", {
        **MOE, "num_hidden_layers": 5, "use_bias": True, "moe_layer_start_index": 1, "moe_layer_end_index": 3,
        "moe_layer_interval": 2, "rms_norm_eps": 1e-2, "head_dim": 12, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.mlp.router.correction=null", "model.mlp.router.normalise=false", "model.mlp.shared.bias=false",
        "model.head.bias=false", "model.attention.out_bias=false", "model.position.pairing=half",
        "model.layers.dense.mlp.bias=false", "model.mlp.active=2",
    )),
    Case("ernie4_5_moe", "unsaid", {**MOE, "moe_num_shared_experts": 0, "moe_norm_min": 1e-9}, (
        "model.mlp.router.correction=null", "model.position.theta=10000.0", "model.head.tied=false",
    )),
]  # fmt: skip
