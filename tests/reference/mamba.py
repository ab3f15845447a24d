"""Mamba 1's mixer (Gu & Dao 2023) as a recurrence in every channel: S <- exp(dt A) S + dt x B, y = S C + D x."""

import numpy as np

from tests.reference.mamba2 import silu, softplus
from tests.reference.short_conv import Array, Params, causal_conv, linear


def mamba(params: Params, u_TD: Array, norm_eps: float | None = None) -> Array:
    """Map one sequence: [T, D] -> [T, D]. With an epsilon, three vectors are divided by their root mean squares."""

    def normed(name: str, values: Array) -> Array:
        if norm_eps is None:
            return values
        return values / np.sqrt(np.mean(values**2) + norm_eps) * params[f"{name}_norm.weight"]

    x_TW = silu(causal_conv(params, np.stack([linear(params, "x", u) for u in u_TD])))
    A_WN = -np.exp(params["A_log"])
    S_WN = np.zeros_like(A_WN)
    out_TD = []
    for u, x in zip(u_TD, x_TW, strict=True):
        B_N, C_N = (normed(name, linear(params, name, x)) for name in ("B", "C"))
        low = normed("dt", linear(params, "dt_low", x))
        dt_W = softplus(linear(params, "dt", low) + params["dt_bias"])
        S_WN = np.exp(dt_W[:, None] * A_WN) * S_WN + np.outer(dt_W * x, B_N)
        y = (S_WN @ C_N + params["D"] * x) * silu(linear(params, "gate", u))
        out_TD.append(linear(params, "out", y))
    return np.stack(out_TD)
