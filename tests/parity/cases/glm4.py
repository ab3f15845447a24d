"""GLM-4-0414."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("glm4", "partial", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3, "rope_parameters": {
        "rope_type": "default", "rope_theta": 50.0,
    }}, (
        "model.norm.eps=1e-6", "model.position.pairing=half", "model.position.fraction=1", "model.norm.placement=pre",
    )),
    Case("glm4", "no-bias-tied", {
        **SMALL, "head_dim": 8, "num_key_value_heads": 4, "attention_bias": False, "tie_word_embeddings": True,
        "hidden_act": "gelu",
    }, ("model.mlp.activation=gelu_tanh",)),
]  # fmt: skip
