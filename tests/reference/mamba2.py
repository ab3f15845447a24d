"""Mamba 2's mixer (Dao & Gu 2024) as a recurrence in every head: S <- exp(dt A) S + dt x B^T, y = S C + D x."""

import numpy as np

from tests.reference.short_conv import Array, Params, causal_conv, linear


def silu(x: Array) -> Array:
    """Return x sigmoid(x)."""
    return x / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    """Return ln(1 + e^x)."""
    return np.logaddexp(0, x)


def group_rms(x: Array, groups: int, eps: float) -> Array:
    """Divide each group of adjacent features by its root mean square."""
    out = np.empty_like(x)
    width = len(x) // groups
    for g in range(groups):
        part = x[g * width : (g + 1) * width]
        out[g * width : (g + 1) * width] = part / np.sqrt(np.mean(part**2) + eps)
    return out


def mamba2(
    params: Params,
    u_TD: Array,
    *,
    n_heads: int,
    head_dim: int,
    d_state: int,
    n_groups: int,
    gate: str,
    norm_eps: float,
    dt_min: float,
    dt_max: float,
) -> Array:
    """Map one sequence: [T, D] -> [T, D]. `gate` is applied before the norm, after it, or without a norm."""
    H, P, N, G = n_heads, head_dim, d_state, n_groups
    xBC_TC = np.stack([np.concatenate([linear(params, name, u) for name in ("x", "B", "C")]) for u in u_TD])
    xBC_TC = silu(causal_conv(params, xBC_TC))
    S_HPN = np.zeros((H, P, N))
    out_TD = []
    for u, xBC in zip(u_TD, xBC_TC, strict=True):
        x_HP = xBC[: H * P].reshape(H, P)
        B_GN = xBC[H * P : H * P + G * N].reshape(G, N)
        C_GN = xBC[H * P + G * N :].reshape(G, N)
        dt_H = np.clip(softplus(linear(params, "dt", u) + params["dt_bias"]), dt_min, dt_max)
        y_HP = np.empty((H, P))
        for h in range(H):
            B_N, C_N = B_GN[h // (H // G)], C_GN[h // (H // G)]
            decay = np.exp(-dt_H[h] * np.exp(params["A_log"][h]))
            S_HPN[h] = decay * S_HPN[h] + dt_H[h] * np.outer(x_HP[h], B_N)
            y_HP[h] = S_HPN[h] @ C_N + params["D"][h] * x_HP[h]
        y, z = y_HP.reshape(-1), silu(linear(params, "gate", u))
        if gate == "before":
            y = params["norm.weight"] * group_rms(y * z, G, norm_eps)
        elif gate == "after":
            y = params["norm.weight"] * group_rms(y, G, norm_eps) * z
        else:
            y = y * z
        out_TD.append(linear(params, "out", y))
    return np.stack(out_TD)
