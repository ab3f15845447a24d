"""Falcon-Mamba."""

from tests.parity.cases.mamba import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("falcon_mamba", "tied", {**SMALL, "layer_norm_epsilon": 1e-2, "mixer_rms_eps": 1e-1}, (
        "model.norm.eps=1e-5", "model.mixer.inner_norm.eps=1e-6", "model.mixer.inner_norm.kind=none",
        "model.mixer.conv_bias=false",
    )),
    Case("falcon_mamba", "biases", {
        **SMALL, "expand": 16, "intermediate_size": 36, "time_step_rank": 5, "conv_kernel": 3, "use_bias": True,
        "use_conv_bias": False, "tie_word_embeddings": False,
    }, ("model.mixer.in_bias=false", "model.mixer.out_bias=false", "model.mixer.inner_norm.kind=none")),
]  # fmt: skip
