"""nanochat."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("nanochat", "plain", {**SMALL, "rms_norm_eps": 1e-1, "final_logit_softcapping": 3.0}, (
        "model.attention.qk_norm=none", "model.embedding.norm=false",
        "model.norm.eps=1e-5", "model.attention.qk_norm.eps=1e-5", "model.mlp.activation=relu",
        "model.head.softcap=null", "model.position.theta=100.0",
    )),
    Case("nanochat", "biases-scaled", {
        **SMALL, "num_key_value_heads": None, "attention_bias": True, "final_logit_softcapping": None,
        "tie_word_embeddings": True, "hidden_act": "gelu",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        },
    }, (
        "model.attention.qkv_bias=false", "model.attention.out_bias=false",
        "model.position={scaling: {kind: none}, order: after_qk_norm}", "model.position.order=after_qk_norm",
        "model.mlp.activation=relu_squared",
    )),
    Case("nanochat", "wide-heads", {**SMALL, "head_dim": 12, "num_key_value_heads": 1}, (
        "model.attention.scale=1.0",
    )),
]  # fmt: skip
