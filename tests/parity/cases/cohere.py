"""Command R."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("cohere", "qk-norm", {
        **SMALL, "use_qk_norm": True, "layer_norm_eps": 1e-2, "logit_scale": 0.3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.attention.qk_norm=none", "model.attention.qk_norm.eps=1e-5", "model.norm.eps=1e-5", "model.head.scale=1",
        "model.norm.kind=rmsnorm", "model.position.pairing=half",
    )),
    Case("cohere", "biases-untied", {
        **SMALL, "num_key_value_heads": None, "head_dim": 12, "attention_bias": True, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
    }, ("model.position.pairing=half", "model.position.scaling=none")),
]  # fmt: skip
