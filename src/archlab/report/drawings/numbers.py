"""Formulas of the model in NumPy, for pictures. torch is not loaded, so that a picture can be redrawn at once.

The tests compare every function with the implementation in `model`.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import scipy  # loads its parts on first use

from archlab.config.components import norm as norms
from archlab.config.components import rope_scaling as schema
from archlab.config.components.position import Alibi, Rope

Array = np.ndarray

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _sigmoid(x: Array) -> Array:
    return scipy.special.expit(x)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _xielu(x: Array) -> Array:
    """Return xIELU with the initial values of its learned parameters, both 0.8."""
    return np.where(x > 0, 0.8 * x * x, 0.8 * (np.expm1(np.minimum(x, -1e-6)) - x)) + 0.5 * x


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "elu": _elu,
    "selu": lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0))),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(0, x),
    "identity": lambda x: x,
    "xielu": _xielu,
}
"""Function of each built-in activation. Learned parameters have their initial values."""


def normalized(norm: norms.BlockNorm, x: Array) -> Array:
    """Return the result of a norm over the features of one vector. Learned parameters have their initial values."""
    match norm:
        case norms.LayerNorm():
            return (x - x.mean()) / np.sqrt(x.var() + norm.eps)
        case norms.RMSNorm():
            return x / np.sqrt(np.mean(x**2) + norm.eps)
        case norms.PartialRMSNorm():
            return x / np.sqrt(np.mean(x[: norm.n_first(len(x))] ** 2) + norm.eps)
        case norms.ScaleNorm():
            return math.sqrt(len(x)) * x / max(np.linalg.norm(x), norm.eps)
        case norms.DynamicTanh():
            return np.tanh(norm.alpha * x)
        case _:
            raise TypeError(f"no picture of the norm {type(norm).__name__}")


def frequencies(rope: Rope, width: int, length: int) -> tuple[Array, float]:
    """Return the angle in radians by which each pair of dimensions turns per token, and the factor on the cosines.

    `width` is the number of dimensions of a head, and `length` the number of tokens of the sequence, on which some
    scalings depend.
    """
    n = width if rope.fraction == 1 else int(width * rope.fraction)
    pairs = np.arange(n // 2)
    plain = 1 / rope.theta ** (2 * pairs / n)
    match rope.scaling:
        case schema.NoScaling():
            return plain, 1.0
        case schema.LinearScaling(factor=factor):
            return plain / factor, 1.0
        case schema.DynamicNTK() as s:
            stretch = s.factor * max(length / s.original_max_seq_len, 1) - (s.factor - 1)
            return 1 / (rope.theta * stretch ** (n / (n - 2))) ** (2 * pairs / n), 1.0
        case schema.Llama3Scaling() as s:
            turns = s.original_max_seq_len * plain / (2 * math.pi)
            kept = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0, 1)
            return kept * plain + (1 - kept) * plain / s.factor, 1.0
        case schema.Yarn() as s:
            kept = _kept_by_yarn(s, rope.theta, n, pairs)
            return plain / s.factor * (1 - kept) + plain * kept, s.amplitude
        case schema.Longrope() as s:
            is_long = length > s.original_max_seq_len
            factors = s.long_factor if is_long else s.short_factor
            longer = s.long_attention_factor if is_long else None
            return plain / np.array(factors), longer or s.amplitude
        case schema.Proportional() as s:
            return np.where(pairs < s.rotated_pairs(n), plain, 0.0), 1.0


def _kept_by_yarn(s: schema.Yarn, theta: float, n: int, pairs: Array) -> Array:
    first, last = (
        n * math.log(s.original_max_seq_len / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (s.beta_fast, s.beta_slow)
    )
    if s.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, n - 1)
    return 1 - np.clip((pairs - first) / ((last - first) or 1e-3), 0, 1)


def mean_products(rope: Rope, width: int, distances: Array, length: int) -> Array:
    """Return the expected product of a random query and an identical key at each distance, as a share of that at
    distance 0. No dimension of the query is larger than another on average."""
    per_token, amplitude = frequencies(rope, width, length)
    still = width - 2 * len(per_token)
    turned = 2 * amplitude**2 * np.cos(np.multiply.outer(distances, per_token)).sum(-1)
    return (turned + still) / (2 * amplitude**2 * len(per_token) + still)


def alibi_slopes(alibi: Alibi, n_heads: int) -> list[float]:
    """Return the slope of each head (Press 2021)."""
    power = 2 ** math.floor(math.log2(n_heads))
    series = [2 ** (-alibi.max_bias * i / power) for i in range(1, power + 1)]
    between = [2 ** (-alibi.max_bias * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return (series + between)[:n_heads]


def t5_buckets(distances: Array, buckets: int, max_distance: int) -> Array:
    """Return the bucket of each distance >= 0 (Raffel 2020)."""
    exact = buckets // 2
    share = np.log((np.maximum(distances, 1) / exact).astype(np.float32)) / math.log(max_distance / exact)
    far = np.minimum(exact + (share * (buckets - exact)).astype(int), buckets - 1)
    return np.where(distances < exact, distances, far)


def chosen_experts(logits_NE: Array, active: int) -> Array:
    """Return the experts of each token, best first: [N, E] -> [N, K]. Experts with higher logits have higher scores."""
    return np.argsort(-logits_NE, axis=-1, kind="stable")[:, :active]
