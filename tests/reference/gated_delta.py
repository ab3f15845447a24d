"""The gated delta rule (Yang 2024) as a recurrence: S decays, then the value of k in S moves toward v by the share
beta."""

import numpy as np

from tests.reference.mamba2 import group_rms, silu, softplus
from tests.reference.short_conv import Array, Params, causal_conv, linear


def unit(x: Array) -> Array:
    """Return x divided by its length."""
    return x / np.sqrt(np.sum(x**2) + 1e-6)


def gated_delta(
    params: Params,
    u_TD: Array,
    *,
    n_key_heads: int,
    n_value_heads: int,
    key_dim: int,
    value_dim: int,
    negative_eigenvalues: bool,
    norm_eps: float,
) -> Array:
    """Map one sequence: [T, D] -> [T, D]."""
    Hk, Hv, K, V = n_key_heads, n_value_heads, key_dim, value_dim
    qkv_TC = np.stack([np.concatenate([linear(params, name, u) for name in ("q", "k", "v")]) for u in u_TD])
    qkv_TC = silu(causal_conv(params, qkv_TC))
    S_HKV = np.zeros((Hv, K, V))
    out_TD = []
    for u, qkv in zip(u_TD, qkv_TC, strict=True):
        q_HK = qkv[: Hk * K].reshape(Hk, K)
        k_HK = qkv[Hk * K : 2 * Hk * K].reshape(Hk, K)
        v_HV = qkv[2 * Hk * K :].reshape(Hv, V)
        beta_H = 1 / (1 + np.exp(-linear(params, "beta", u)))
        beta_H = 2 * beta_H if negative_eigenvalues else beta_H
        decay_H = np.exp(-np.exp(params["A_log"]) * softplus(linear(params, "decay", u) + params["dt_bias"]))
        o_HV = np.empty((Hv, V))
        for h in range(Hv):
            q = unit(q_HK[h // (Hv // Hk)]) / np.sqrt(K)
            k = unit(k_HK[h // (Hv // Hk)])
            S_HKV[h] *= decay_H[h]
            S_HKV[h] += np.outer(k, beta_H[h] * (v_HV[h] - S_HKV[h].T @ k))
            o_HV[h] = params["norm.weight"] * group_rms(S_HKV[h].T @ q, 1, norm_eps)
        o = o_HV.reshape(-1) * silu(linear(params, "gate", u))
        out_TD.append(linear(params, "out", o))
    return np.stack(out_TD)
