"""OLMo 2."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("olmo2", "gqa", {**SMALL, "rms_norm_eps": 1e-2}, (
        "model.norm.eps=1e-5", "model.attention.qk_norm.eps=1e-5", "model.attention.qk_norm=none",
        "model.position.order=before_qk_norm",
    )),
    Case("olmo2", "biases", {
        **SMALL, "num_key_value_heads": 4, "attention_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }, ("model.attention.out_bias=false", "model.attention.qkv_bias=false", "model.position.scaling=none")),
]  # fmt: skip
