"""Cases with recurrent mixers for the tests of GGUF files, and the formulas of llama.cpp's converter for them."""

from typing import Any

from torch import Tensor

from tests.parity.tiny import Case

MAMBA2 = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_heads": 6, "head_dim": 8, "state_size": 5}

RECURRENT = [
    Case("mamba2", "groups-tied", {**MAMBA2, "n_groups": 3, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": True}),
    Case("mamba2", "one-group", {**MAMBA2, "n_groups": 1, "conv_kernel": 3}),
]

RECURRENT_NUMBERS: dict[str, dict[str, Any]] = {
    "mamba2-groups-tied": {
        "ssm.conv_kernel": 4, "ssm.inner_size": 48, "ssm.state_size": 5, "ssm.time_step_rank": 6, "ssm.group_count": 3,
        "attention.head_count": 0, "feed_forward_length": 0, "attention.layer_norm_rms_epsilon": 1e-2,
    },
}  # fmt: skip
"""Values that llama.cpp reads, by case."""

RECURRENT_REFUSED = [
    ("mamba2", {"num_heads": 3, "expand": 1}, "model.mixer.inner_width is 24; allowed: 2 * d_model (48)"),
    ("mamba2", {"use_conv_bias": False}, "model.mixer.conv_bias is false; allowed: true"),
    ("mamba2", {"use_bias": True}, "model.mixer.in_bias is true; allowed: false"),
    ("mamba2", {"time_step_limit": [0.001, 0.1]}, "model.mixer.dt_min is 0.001; allowed: 0.0"),
]
"""Changes of a case that llama.cpp cannot run, and the message for each."""


def converted_recurrent(case: Case, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that llama.cpp's converter makes of a published one, by the name that its name map gets.

    See `Mamba2Model.modify_tensors` in conversion/mamba.py.
    """
    groups = case.hf.get("n_groups", case.hf.get("mamba_n_groups", 1))
    match name.split(".")[-2:]:
        case [_, "dt_bias"]:
            return {f"{name.removesuffix('dt_bias')}dt_proj.bias": tensor}
        case ["conv1d", "weight"]:
            return {name: tensor.squeeze()}
        case [_, "A_log"]:
            return {name: -tensor.exp().reshape(-1, 1)}
        case [_, "D"]:
            return {name: tensor.reshape(-1, 1)}
        case ["norm", "weight"] if ".mixer." in name:
            return {name: tensor.reshape(groups, -1)}
        case _:
            return {name: tensor}
