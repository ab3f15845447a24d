"""Gated short convolution, the mixer of LFM2: out = W_out (C * conv(B * x)), with [B | C | x] projected from
the input."""

import numpy as np

Array = np.ndarray
Params = dict[str, Array]


def linear(params: Params, name: str, x: Array) -> Array:
    """Return W x + b, without b if there is no bias."""
    y = params[f"{name}.weight"] @ x
    return y + params[f"{name}.bias"] if f"{name}.bias" in params else y


def causal_conv(params: Params, x_TC: Array) -> Array:
    """Return y_t = sum over j of w_j x_{t-K+1+j}, plus the bias if there is one.

    Channels are independent. Inputs before the start are zeros.
    """
    weight_C1K = params["conv.weight"]
    taps = weight_C1K.shape[-1]
    y_TC = np.zeros_like(x_TC)
    for t in range(len(x_TC)):
        for j in range(taps):
            source = t - taps + 1 + j
            if source >= 0:
                y_TC[t] += weight_C1K[:, 0, j] * x_TC[source]
        if "conv.bias" in params:
            y_TC[t] += params["conv.bias"]
    return y_TC


def short_conv(params: Params, u_TD: Array) -> Array:
    """Map one sequence: [T, D] -> [T, D]."""
    before_TD = np.stack([linear(params, "input_gate", u) * linear(params, "x", u) for u in u_TD])
    mixed_TD = causal_conv(params, before_TD)
    gates_TD = np.stack([linear(params, "output_gate", u) for u in u_TD])
    return np.stack([linear(params, "out", c * y) for c, y in zip(gates_TD, mixed_TD, strict=True)])
