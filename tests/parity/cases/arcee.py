"""Arcee's AFM."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("arcee", "yarn", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5,
                            "mscale": 1.0, "original_max_position_embeddings": 16},
    }, ("model.position.scaling=none", "model.position.scaling.beta_slow=1.0", "model.mlp.activation=relu")),
    Case("arcee", "biases", {
        **SMALL, "num_key_value_heads": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "hidden_act": "silu",
    }, ("model.mlp.bias=false", "model.attention.out_bias=false", "model.mlp.activation=relu_squared")),
]  # fmt: skip
