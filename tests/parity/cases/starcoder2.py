"""StarCoder 2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("starcoder2", "window", {**SMALL, "norm_epsilon": 1e-2, "sliding_window": 7}, (
        "model.norm.eps=1e-5", "model.attention.window=null", "model.attention.window=8", "model.mlp.activation=gelu",
        "model.attention.out_bias=false", "model.norm.kind=rmsnorm",
    )),
    Case("starcoder2", "no-bias-untied", {
        **SMALL, "num_key_value_heads": 1, "head_dim": 12, "use_bias": False, "tie_word_embeddings": False,
        "hidden_act": "gelu", "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, ("model.position.scaling=none", "model.mlp.activation=gelu_tanh")),
]  # fmt: skip
