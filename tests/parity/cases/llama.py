"""Llama."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("llama", "gqa", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3}, ("model.norm.eps=1e-6", "model.position.pairing=interleaved")),
    Case("llama", "biases-llama3", {
        **SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }, ("model.position.scaling=none",)),
]  # fmt: skip
