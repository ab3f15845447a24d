"""Attention in float64 NumPy, query by query and key by key: the reference for the model's modules.

It has no masks, batches or caches. A function decides which keys a query sees. Shapes: T tokens, D d_model, H query
heads, C width of one query and key, V width of one value. Weights are [out, in], as in torch's linear layers. They have
the names of the modules' parameters.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]
Sees = Callable[[int, int], bool]
"""(position of the query, position of the key) -> whether the query sees the key."""


def causal(query: int, key: int) -> bool:
    """See every key up to the query."""
    return key <= query


def within_window(window: int) -> Sees:
    """See the last `window` keys, including the query's own."""
    return lambda query, key: 0 <= query - key < window


def within_chunk(size: int) -> Sees:
    """See earlier keys of the query's own chunk (Llama 4)."""
    return lambda query, key: key <= query and key // size == query // size


# --- positions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng 2023), with DeepSeek's two multipliers."""

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    def amplitude(self) -> float:
        """Factor on cos and sin."""
        if self.mscale and self.mscale_all_dim:
            return magnitude(self.factor, self.mscale) / magnitude(self.factor, self.mscale_all_dim)
        return magnitude(self.factor, 1.0)

    def frequency(self, pair: int, n: int, theta: float) -> float:
        """Return the radians per token of pair number `pair` of the n / 2 pairs."""

        def boundary(turns: float) -> float:
            return n * math.log(self.original / (2 * math.pi * turns)) / (2 * math.log(theta))

        low, high = boundary(self.beta_fast), boundary(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, n - 1)
        stretched = min(max((pair - low) / ((high - low) or 0.001), 0.0), 1.0)
        plain = theta ** (-2 * pair / n)
        return stretched * plain / self.factor + (1 - stretched) * plain


def magnitude(factor: float, multiplier: float) -> float:
    """Return DeepSeek's m(a) = 0.1 a ln(factor) + 1."""
    return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0


@dataclass(frozen=True)
class Rope:
    """A rotation of the first `n` numbers of a vector."""

    n: int
    theta: float = 10000.0
    interleaved: bool = False
    yarn: Yarn | None = None

    def __call__(self, vector: Array, position: int) -> Array:
        """Return the vector rotated for this position."""
        out = vector.copy()
        for pair in range(self.n // 2):
            i, j = (2 * pair, 2 * pair + 1) if self.interleaved else (pair, pair + self.n // 2)
            plain = self.theta ** (-2 * pair / self.n)
            angle = position * (self.yarn.frequency(pair, self.n, self.theta) if self.yarn else plain)
            turned = complex(vector[i], vector[j]) * complex(math.cos(angle), math.sin(angle))
            turned *= self.yarn.amplitude() if self.yarn else 1.0
            out[i], out[j] = turned.real, turned.imag
        return out


def standing(vector: Array, position: int) -> Array:
    """Return the vector without rotation."""
    return vector


Rotate = Callable[[Array, int], Array]


@dataclass(frozen=True)
class Temperature:
    """Factor on queries that grows with their position (Nakanishi 2025; Llama 4)."""

    beta: float
    length: int
    offset: int

    def __call__(self, position: int) -> float:
        """Return the factor on the query at this position."""
        return 1 + self.beta * math.log(1 + (position + self.offset) // self.length)


def with_content_bias(query_C: Array, head: int, weights: Weights) -> Array:
    """Return q + u of Transformer-XL (Dai 2019, section 3.3), or q without it."""
    u = weights.get("position_bias.content_bias")
    return query_C if u is None else query_C + u[head]


def by_distance(query_C: Array, head: int, distance: int, weights: Weights) -> float:
    """Return (q + v) . (W r) of Transformer-XL, or 0 without it. r is the vector of the distance: all sines, then all
    cosines."""
    W = weights.get("position_bias.projection.weight")
    if W is None:
        return 0.0
    C, D = len(query_C), W.shape[1]
    angles = [distance / 10000 ** (2 * m / D) for m in range((D + 1) // 2)]
    r_D = np.array([*map(math.sin, angles), *map(math.cos, angles)][:D])
    key_C = W[head * C : (head + 1) * C] @ r_D
    return float((query_C + weights["position_bias.distance_bias"][head]) @ key_C)


# --- one query ------------------------------------------------------------------------------------------------


def attend(
    query_C: Array, keys: list[Array], values: list[Array], scale: float, sink: float | None = None,
    added: list[float] | None = None,
) -> Array:  # fmt: skip
    """Return the softmax-weighted sum of the values that one query sees. A sink takes a share of the weight but adds no
    value. `added` has one term per key, which is added to the product of the query and the key before the scale."""
    terms = added or [0.0] * len(keys)
    exponents = [scale * (float(query_C @ key_C) + term) for key_C, term in zip(keys, terms, strict=True)]
    with_sink = exponents if sink is None else [*exponents, sink]
    largest = max(with_sink)
    total = math.fsum(math.exp(exponent - largest) for exponent in with_sink)
    weights = [math.exp(exponent - largest) / total for exponent in exponents]
    return np.sum([weight * value_V for weight, value_V in zip(weights, values, strict=True)], axis=0)


def linear(x: Array, weights: Weights, name: str) -> Array:
    """Return W x + b, without b if there is no bias."""
    out = x @ weights[f"{name}.weight"].T
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Return x / sqrt(mean(x^2) + eps) * w."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


GATES: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
}


# --- whole layers ---------------------------------------------------------------------------------------------


def multihead(
    x_TD: Array,
    weights: Weights,
    *,
    n_heads: int,
    n_kv_heads: int,
    scale: float,
    sees: Sees = causal,
    rotate: Rotate = standing,
    temperature: Callable[[int], float] | None = None,
    gate: str | None = None,
    first: int = 0,
) -> Array:
    """Multi-head attention over tokens at positions first, first + 1, ...; `gate` names the activation of the gate."""
    x_TD = np.asarray(x_TD, np.float64)
    T = len(x_TD)
    q_THC = linear(x_TD, weights, "q").reshape(T, n_heads, -1)
    k_TKC, v_TKV = (linear(x_TD, weights, name).reshape(T, n_kv_heads, -1) for name in ("k", "v"))
    out_THV = np.zeros((T, n_heads, v_TKV.shape[-1]))
    for t in range(T):
        for h in range(n_heads):
            group = h // (n_heads // n_kv_heads)
            query_C = rotate(q_THC[t, h], first + t) * (temperature(first + t) if temperature else 1.0)
            seen = [s for s in range(T) if sees(first + t, first + s)]
            keys = [rotate(k_TKC[s, group], first + s) for s in seen]
            sink = float(weights["sinks"][h]) if "sinks" in weights else None
            added = [by_distance(query_C, h, t - s, weights) for s in seen]
            query_C = with_content_bias(query_C, h, weights)
            out_THV[t, h] = attend(query_C, keys, [v_TKV[s, group] for s in seen], scale, sink, added)
    if gate is not None:
        out_THV = out_THV * GATES[gate](
            linear(x_TD, weights, "gate").reshape(T, n_heads, -1)
        )  # V numbers per head, or 1
    return linear(out_THV.reshape(T, -1), weights, "out")


def latent(
    x_TD: Array,
    weights: Weights,
    *,
    n_heads: int,
    nope_dim: int,
    v_dim: int,
    scale: float,
    sees: Sees = causal,
    rotate: Rotate = standing,
    eps: float = 1e-6,
    first: int = 0,
) -> Array:
    """Multi-head latent attention in its expanded form (DeepSeek-V2), over tokens at positions first, first + 1, ..."""
    x_TD = np.asarray(x_TD, np.float64)
    T, kv_rank = len(x_TD), len(weights["kv_norm.weight"])
    q_TR = x_TD
    if "q_down.weight" in weights:
        q_TR = rms_norm(linear(x_TD, weights, "q_down"), weights["q_norm.weight"], eps)
    q_THC = linear(q_TR, weights, "q_up").reshape(T, n_heads, -1)
    down_TR = linear(x_TD, weights, "kv_down")
    latent_TR = rms_norm(down_TR[:, :kv_rank], weights["kv_norm.weight"], eps)
    kv_THE = linear(latent_TR, weights, "kv_up").reshape(T, n_heads, nope_dim + v_dim)
    out_THV = np.zeros((T, n_heads, v_dim))
    for t in range(T):
        for h in range(n_heads):
            query_C = np.concatenate((q_THC[t, h, :nope_dim], rotate(q_THC[t, h, nope_dim:], first + t)))
            seen = [s for s in range(T) if sees(first + t, first + s)]
            keys = [np.concatenate((kv_THE[s, h, :nope_dim], rotate(down_TR[s, kv_rank:], first + s))) for s in seen]
            added = [by_distance(query_C, h, t - s, weights) for s in seen]
            query_C = with_content_bias(query_C, h, weights)
            out_THV[t, h] = attend(query_C, keys, [kv_THE[s, h, nope_dim:] for s in seen], scale, added=added)
    return linear(out_THV.reshape(T, -1), weights, "out")
