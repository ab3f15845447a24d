"""The real-gated linear recurrent unit (De 2024: Griffin) as a recurrence; out = W_out (S * gelu(gate))."""

import numpy as np

from tests.reference.mamba2 import softplus
from tests.reference.short_conv import Array, Params, causal_conv, linear


def gelu_tanh(x: Array) -> Array:
    """Return GELU's approximation by tanh."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def block_gate(params: Params, name: str, u_W: Array) -> Array:
    """Return sigmoid(W u + b) for a block-diagonal W."""
    blocks, out = params[f"{name}.weight"], []
    for h, block in enumerate(blocks):
        out.append(block @ u_W[h * len(block) : (h + 1) * len(block)])
    return 1 / (1 + np.exp(-np.concatenate(out) - params[f"{name}.bias"]))


def rglru(params: Params, x_TD: Array) -> Array:
    """Map one sequence: [T, D] -> [T, D]."""
    u_TW = causal_conv(params, np.stack([linear(params, "x", x) for x in x_TD]))
    out_TD, S_W = [], None
    for x, u in zip(x_TD, u_TW, strict=True):
        a_W = np.exp(-8 * block_gate(params, "forget_gate", u) * softplus(params["Lambda"]))
        new_W = block_gate(params, "input_gate", u) * u
        S_W = new_W if S_W is None else a_W * S_W + np.sqrt(1 - a_W**2) * new_W
        out_TD.append(linear(params, "out", S_W * gelu_tanh(linear(params, "gate", x))))
    return np.stack(out_TD)
