"""Mamba 2."""

from typing import Any

from tests.parity.tiny import Case

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_heads": 6, "head_dim": 8, "state_size": 5,
    "n_groups": 3, "chunk_size": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "residual_in_fp32": False,
}  # fmt: skip

CASES = [
    Case("mamba2", "groups", {**SMALL, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": True}, (
        "model.norm.eps=1e-5", "model.mixer.norm.eps=1e-5", "model.mixer.norm.gate=after", "model.mixer.conv_bias=false",
    )),
    # With a cache, the published code does not clamp the step size of single tokens.
    Case("mamba2", "biases", {
        **SMALL, "expand": 1, "head_dim": 4, "n_groups": 1, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False,
        "time_step_limit": [0.01, 0.03],
    }, (
        "model.mixer.in_bias=false", "model.mixer.out_bias=false", "model.mixer.dt_min=0.0", "model.mixer.dt_max=null",
        "model.mixer.norm=none",
    ), cached=False),
]  # fmt: skip
