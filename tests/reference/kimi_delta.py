"""Kimi delta attention (Kimi Team 2025) as a recurrence: each row of S decays by its own factor, then the value of k in
S moves toward v by the share beta."""

import numpy as np

from tests.reference.gated_delta import unit
from tests.reference.mamba2 import group_rms, silu, softplus
from tests.reference.short_conv import Array, Params, causal_conv, linear


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def from_input(params: Params, name: str, u: Array) -> Array:
    """Return the output of one matrix, or of two in turn."""
    if f"{name}.weight" in params:
        return linear(params, name, u)
    return linear(params, f"{name}.up", linear(params, f"{name}.down", u))


def kimi_delta(
    params: Params,
    u_TD: Array,
    *,
    n_key_heads: int,
    n_value_heads: int,
    key_dim: int,
    value_dim: int,
    negative_eigenvalues: bool,
    norm_eps: float,
    decay_bound: float | None,
) -> Array:
    """Map one sequence: [T, D] -> [T, D]."""
    Hk, Hv, K, V = n_key_heads, n_value_heads, key_dim, value_dim
    qkv_TC = np.stack([np.concatenate([linear(params, name, u) for name in ("q", "k", "v")]) for u in u_TD])
    qkv_TC = silu(causal_conv(params, qkv_TC))
    S_HKV = np.zeros((Hv, K, V))
    out_TD = []
    for u, qkv in zip(u_TD, qkv_TC, strict=True):
        q_HK, k_HK = qkv[: 2 * Hk * K].reshape(2, Hk, K)
        v_HV = qkv[2 * Hk * K :].reshape(Hv, V)
        beta_H = sigmoid(linear(params, "beta", u)) * (2 if negative_eigenvalues else 1)
        x_HK = (from_input(params, "decay", u) + params["dt_bias"]).reshape(Hv, K)
        A_H1 = np.exp(params["A_log"])[:, None]
        decay_HK = np.exp(-A_H1 * softplus(x_HK) if decay_bound is None else -decay_bound * sigmoid(A_H1 * x_HK))
        o_HV = np.empty((Hv, V))
        for h in range(Hv):
            q = unit(q_HK[h // (Hv // Hk)]) / np.sqrt(K)
            k = unit(k_HK[h // (Hv // Hk)])
            S = np.diag(decay_HK[h]) @ S_HKV[h]
            S_HKV[h] = S + np.outer(k, beta_H[h] * (v_HV[h] - S.T @ k))
            o_HV[h] = params["norm.weight"] * group_rms(S_HKV[h].T @ q, 1, norm_eps)
        out_TD.append(linear(params, "out", o_HV.reshape(-1) * sigmoid(from_input(params, "gate", u))))
    return np.stack(out_TD)
