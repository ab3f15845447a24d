"""Mamba."""

from typing import Any

from tests.parity.tiny import Case

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "state_size": 5, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "residual_in_fp32": False,
}  # fmt: skip

CASES = [
    Case("mamba", "tied", {**SMALL, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": True}, (
        "model.norm.eps=1e-5", "model.mixer.conv_bias=false",
    )),
    Case("mamba", "biases", {
        **SMALL, "expand": 3, "time_step_rank": 5, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False,
        "tie_word_embeddings": False,
    }, ("model.mixer.in_bias=false", "model.mixer.out_bias=false")),
]  # fmt: skip
