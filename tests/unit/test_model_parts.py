"""Norms, activations, positions and attention against formulas written out in float64 NumPy, and torch's own modules."""

import math

import numpy as np
import pytest
import torch
from scipy.special import erf
from scipy.special import softmax as np_softmax

from archlab.config import model_schema as schema
from archlab.model.activations import ACTIVATIONS
from archlab.model.kernels import KERNELS
from archlab.model.norms import make_norm
from archlab.model.position_embed import SinusoidalPositions
from archlab.model.rotary import rotation
from archlab.model.visibility import keys_seen, visible, visible_pairs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 12)) * 3 + 1


def norm_with_random_weights(config: schema.Norm) -> torch.nn.Module:
    norm = make_norm(config, 12).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.from_numpy(RNG.normal(size=parameter.shape)))
    return norm


@pytest.mark.parametrize("bias", [True, False])
def test_layernorm(bias: bool) -> None:
    norm = norm_with_random_weights(schema.LayerNorm(eps=0.1, bias=bias))
    w, b = norm.weight.detach().numpy(), norm.bias.detach().numpy() if bias else 0.0
    expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 0.1) * w + b
    np.testing.assert_allclose(norm(torch.from_numpy(X)).detach(), expected, rtol=1e-12)


def test_rmsnorm_divides_by_the_mean_square_not_the_sum() -> None:
    norm = norm_with_random_weights(schema.RMSNorm(eps=0.1))
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.1) * norm.weight.detach().numpy()
    np.testing.assert_allclose(norm(torch.from_numpy(X)).detach(), expected, rtol=1e-12)


@pytest.mark.parametrize("config", [schema.LayerNorm(), schema.RMSNorm()])
def test_norms_compute_in_float32_under_bfloat16(config: schema.Norm) -> None:
    norm = make_norm(config, 12)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.from_numpy(X).bfloat16()
    wide = norm(x.float())
    assert norm(x).dtype is torch.bfloat16
    torch.testing.assert_close(norm(x), wide.bfloat16(), rtol=0, atol=0)


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * (np.exp(np.minimum(x, 0)) - 1)),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", schema.Activation.__args__)
def test_activation(name: str) -> None:
    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(ACTIVATIONS[name](torch.from_numpy(x)), FORMULAS[name](x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("d_model", [8, 7])
def test_sinusoidal(d_model: int) -> None:
    table = SinusoidalPositions(schema.Sinusoidal(theta=500.0), d_model)(torch.arange(9))
    for t in range(9):
        for i in range(d_model):
            angle = t / 500.0 ** (2 * (i // 2) / d_model)
            assert table[t, i].item() == pytest.approx(math.sin(angle) if i % 2 == 0 else math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope_is_a_complex_rotation(pairing: str, fraction: float) -> None:
    config = schema.Rope(theta=100.0, fraction=fraction, pairing=pairing)
    x = RNG.normal(size=(1, 1, 6, 8))
    got = rotation(config, 8, torch.arange(6, dtype=torch.float64)).turn(torch.from_numpy(x)).numpy()
    turning = int(8 * fraction)
    expected = x.copy()
    for t in range(6):
        for i in range(turning // 2):
            a, b = (i, i + turning // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            z = complex(x[0, 0, t, a], x[0, 0, t, b]) * np.exp(1j * t * 100.0 ** (-2 * i / turning))
            expected[0, 0, t, a], expected[0, 0, t, b] = z.real, z.imag
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def attention_in_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float) -> np.ndarray:
    out = np.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = np.where(seen, q[b, h] @ k[b, h // group].T * scale, -np.inf)
            out[b, h] = np_softmax(scores, axis=-1) @ v[b, h // group]
    return out


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 3])
def test_kernels(kernel: str, kv_heads: int, window: int | None) -> None:
    q, k, v = (RNG.normal(size=(2, heads, 7, 4)) for heads in (4, kv_heads, kv_heads))
    at = np.arange(7)
    seen = (at[None, :] <= at[:, None]) & (at[:, None] - at[None, :] < (window or 99))
    mask = None if window is None else torch.from_numpy(seen)
    got = KERNELS[kernel](*map(torch.from_numpy, (q, k, v)), mask, 0.7, 0.0)
    np.testing.assert_allclose(got, attention_in_numpy(q, k, v, seen, 0.7), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 20])
@pytest.mark.parametrize("seq_len", [1, 5, 20])
def test_visible_pairs_are_the_mask_counted(window: int | None, seq_len: int) -> None:
    attention = schema.Attention(n_heads=1, window=window)
    at = torch.arange(seq_len)
    mask = visible(attention, at[:, None], at[None, :])
    assert visible_pairs(attention, seq_len) == int(mask.sum())
    assert [keys_seen(attention, t) for t in range(seq_len)] == mask.sum(-1).tolist()


def test_a_window_of_w_is_w_keys_the_query_among_them() -> None:
    mask = visible(schema.Attention(n_heads=1, window=3), torch.tensor(10), torch.arange(12))
    assert torch.nonzero(mask).flatten().tolist() == [8, 9, 10]
