"""Norms, activations, MLP and attention, compared with formulas in float64 NumPy and with torch's modules."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import erf
from scipy.special import softmax as np_softmax
from torch import Tensor, nn
from transformers.activations import XIELUActivation

from archlab.config.components import activation as activation_schema
from archlab.config.components import multi_head as multi_head_schema
from archlab.config.components import norm as norm_schema
from archlab.config.components import visibility as visibility_schema
from archlab.config.components.visibility import visible, visible_pairs
from archlab.config.core.registry import kinds
from archlab.config.io import build_config
from archlab.config.layers import LayerConfig, layer_configs
from archlab.model.activations import make_activation
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import start_pass
from archlab.model.mlp import MLP
from archlab.model.norms import HeadNorm, make_norm
from schema_classes import classes_in

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 12)) * 3 + 1


def drawn(module: Any) -> Any:
    """Return the module in float64 with random parameters."""
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(torch.from_numpy(RNG.normal(size=parameter.shape)))
    return module


def numbers(parameter: Tensor | None, otherwise: float) -> np.ndarray:
    return np.array(otherwise) if parameter is None else parameter.detach().numpy()


def layer(*overrides: str) -> LayerConfig:
    raw = {"vocab_size": 7, "d_model": 12, "n_layers": 1, "attention": {"n_heads": 4, "head_dim": 6}}
    return layer_configs(build_config({"model": raw}, [f"model.{o}" for o in overrides]).model)[0]


def close(got: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


# --- norms --------------------------------------------------------------------------------------------------


def layernorm_by_hand(x: np.ndarray, w: Any, b: Any, eps: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def rmsnorm_by_hand(x: np.ndarray, w: Any, eps: float) -> np.ndarray:
    """Use the mean square, not the sum of squares."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


def scalenorm_by_hand(x: np.ndarray, g: Any, eps: float) -> np.ndarray:
    """Use the length, not the mean."""
    return g * x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), eps)


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("unit_offset", [True, False])
def test_layernorm(weight: bool, bias: bool, unit_offset: bool) -> None:
    norm = drawn(make_norm(norm_schema.LayerNorm(eps=0.1, weight=weight, bias=bias, unit_offset=unit_offset), 12))
    w = numbers(norm.weight, 1.0) + (unit_offset and weight)
    close(norm(torch.from_numpy(X)), layernorm_by_hand(X, w, numbers(norm.bias, 0.0), 0.1))


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("unit_offset", [True, False])
@pytest.mark.parametrize("cast", ["after_weight", "before_weight"])
def test_rmsnorm(weight: bool, unit_offset: bool, cast: Any) -> None:
    norm = drawn(make_norm(norm_schema.RMSNorm(eps=0.1, weight=weight, unit_offset=unit_offset, cast=cast), 12))
    w = numbers(norm.weight, 1.0) + (unit_offset and weight)
    close(norm(torch.from_numpy(X)), rmsnorm_by_hand(X, w, 0.1))


@pytest.mark.parametrize("eps", [1e-5, 20.0])
def test_scalenorm(eps: float) -> None:
    norm = drawn(make_norm(norm_schema.ScaleNorm(eps=eps), 12))
    close(norm(torch.from_numpy(X)), scalenorm_by_hand(X, numbers(norm.scale, 1.0), eps))


@pytest.mark.parametrize(("share", "n_first"), [(0.3, 4), (0.5, 6), (0.0, 1)])
def test_partial_rmsnorm(share: float, n_first: int) -> None:
    norm = drawn(make_norm(norm_schema.PartialRMSNorm(eps=0.1, share=share), 12))
    root = np.sqrt((X[..., :n_first] ** 2).mean(-1, keepdims=True) + 0.1)
    close(norm(torch.from_numpy(X)), X / root * numbers(norm.weight, 1.0))


def test_dynamic_tanh() -> None:
    norm = make_norm(norm_schema.DynamicTanh(alpha=0.7), 12)
    assert norm.constants["alpha"] == 0.7
    alpha, w, b = (numbers(p, 1.0) for p in (drawn(norm).alpha, norm.weight, norm.bias))
    close(norm(torch.from_numpy(X)), np.tanh(alpha * X) * w + b)


NORMS = {
    "layernorm": test_layernorm,
    "rmsnorm": test_rmsnorm,
    "prmsnorm": test_partial_rmsnorm,
    "scalenorm": test_scalenorm,
    "dyt": test_dynamic_tanh,
}


RMS_NORMS = {
    "plain": norm_schema.RMSNorm(),
    "1 + weight": norm_schema.RMSNorm(unit_offset=True),
    "no weight": norm_schema.RMSNorm(weight=False),
    "cast before the weight": norm_schema.RMSNorm(cast="before_weight"),
}
BOUND = 2**-20
"""Largest relative error of RMSNorm and its gradients in float32: eight times the rounding of one number. The errors
were at most 0.6 of it, for up to 16,384 features."""


def gradients(norm: nn.Module, x: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    """Return the output and the gradients of x and of the weight. x is also used elsewhere."""
    x = x.detach().requires_grad_()
    out = norm(x)
    total = (out * given).sum() + (x * 0.3).sum()
    return out.detach(), *torch.autograd.grad(total, (x, *norm.parameters()))


@pytest.mark.parametrize("name", RMS_NORMS)
@pytest.mark.parametrize("shape", [(12,), (5, 12)])
def test_gradients_of_rmsnorm_are_exact(name: str, shape: tuple[int, ...]) -> None:
    """In float64, compared with finite differences, for a contiguous and a transposed x."""
    norm = drawn(make_norm(RMS_NORMS[name], *shape))
    contiguous = torch.from_numpy(X).requires_grad_()
    transposed = torch.from_numpy(X.swapaxes(0, 1).copy()).transpose(0, 1).requires_grad_()
    for x in (contiguous, transposed):
        assert torch.autograd.gradcheck(lambda x, *_: norm(x), (x, *norm.parameters()))


def test_rmsnorm_of_no_tokens_has_gradients() -> None:
    norm = drawn(make_norm(norm_schema.RMSNorm(), 12))
    _, grad_x, grad_weight = gradients(norm, torch.empty(2, 0, 12, dtype=torch.float64), torch.tensor(1.0))
    assert grad_x.shape == (2, 0, 12)
    assert torch.equal(grad_weight, torch.zeros(12))


@pytest.mark.parametrize("name", RMS_NORMS)
@pytest.mark.parametrize("width", [12, 384, 4096])
@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (1e-3, 0), (100, 300)])
def test_rmsnorm_in_float32_keeps_its_bound(name: str, width: int, scale: float, offset: float) -> None:
    """The reference is torch's own RMSNorm in float64. Errors of gradients are relative to the largest gradient of the
    vector, or to the sum of the absolute values that a weight's gradient adds."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, width, generator=draw) * scale + offset
    given = torch.randn(50, width, generator=draw) + 0.3
    norm = make_norm(RMS_NORMS[name], width)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, generator=draw)
    out, grad_x, *grads = gradients(norm, x, given)

    x = x.double().requires_grad_()
    normed = F.rms_norm(x, (width,), eps=RMS_NORMS[name].eps)
    weights = [parameter.detach().double().requires_grad_() for parameter in norm.parameters()]
    exact = normed * (weights[0] + RMS_NORMS[name].unit_offset) if weights else normed
    exact_x, *exact_grads = torch.autograd.grad((exact * given).sum() + (x * 0.3).sum(), (x, *weights))
    assert ((out - exact).abs() <= BOUND * exact.abs()).all()
    assert ((grad_x - exact_x).abs() <= BOUND * exact_x.abs().amax(-1, keepdim=True)).all()
    for grad, exact_grad in zip(grads, exact_grads, strict=True):
        assert ((grad - exact_grad).abs() <= BOUND * (normed * given).abs().sum(0)).all()


@pytest.mark.parametrize("name", RMS_NORMS)
@pytest.mark.parametrize("width", [12, 384])
def test_rmsnorm_trains_as_it_evaluates_to_the_bit(name: str, width: int) -> None:
    """In float32. A teacher with the weights of the model then has a distance of exactly 0."""
    norm = drawn(make_norm(RMS_NORMS[name], width)).float()
    x = torch.randn(50, width)
    with torch.no_grad():
        evaluated = norm(x)
    assert torch.equal(norm(x.requires_grad_()), evaluated)


@pytest.mark.parametrize("name", RMS_NORMS)
@pytest.mark.parametrize("under", ["bfloat16", "autocast"])
def test_rmsnorm_trains_as_it_evaluates(name: str, under: str) -> None:
    """In bfloat16, the output of the training pass is that of the evaluation, up to one rounding of the result."""
    norm = make_norm(RMS_NORMS[name], 12).to(torch.bfloat16 if under == "bfloat16" else torch.float32)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.from_numpy(X).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=under == "autocast"):
        trained = norm(x)
        with torch.no_grad():
            evaluated = norm(x)
    assert trained.dtype is evaluated.dtype is torch.bfloat16
    assert trained.requires_grad == bool(list(norm.parameters()))
    torch.testing.assert_close(trained, evaluated, rtol=2**-7, atol=0)


def test_torch_computes_rmsnorm_except_in_training_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other devices torch has a fused kernel. The device `meta` stands for them."""
    calls = list[str]()
    by_torch = F.rms_norm

    def noted(x: Tensor, *rest: Any, **options: Any) -> Tensor:
        calls.append(x.device.type)
        return by_torch(x, *rest, **options)

    monkeypatch.setattr(F, "rms_norm", noted)
    norm = make_norm(norm_schema.RMSNorm(), 12)
    norm(torch.ones(2, 12))
    assert not calls
    norm.to("meta")(torch.ones(2, 12, device="meta"))
    assert calls == ["meta"]


def test_no_norm_leaves_x_as_it_is() -> None:
    x = torch.from_numpy(X)
    assert torch.equal(make_norm(norm_schema.NoNorm(), 12)(x), x)


def test_every_norm_has_its_formula_here() -> None:
    of_queries = {norm.model_fields["kind"].default for norm in classes_in(multi_head_schema.QKNorm)}
    assert kinds(norm_schema.BlockNorm).keys() | of_queries == {*NORMS, "none"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (norm_schema.LayerNorm(eps=0.1), nn.LayerNorm(12, eps=0.1)),
        (norm_schema.LayerNorm(eps=0.1, bias=False), nn.LayerNorm(12, eps=0.1, bias=False)),
        (norm_schema.LayerNorm(weight=False, bias=False), nn.LayerNorm(12, elementwise_affine=False)),
        (norm_schema.RMSNorm(eps=0.1), nn.RMSNorm(12, eps=0.1)),
        (norm_schema.RMSNorm(eps=0.1, weight=False), nn.RMSNorm(12, eps=0.1, elementwise_affine=False)),
    ],
)
def test_norms_are_those_of_torch(ours: norm_schema.Norm, theirs: nn.Module) -> None:
    norm = make_norm(ours, 12).double()
    norm.load_state_dict(drawn(theirs).state_dict())
    torch.testing.assert_close(norm(torch.from_numpy(X)), theirs(torch.from_numpy(X)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        norm_schema.LayerNorm(eps=0.1),
        norm_schema.LayerNorm(bias=False),
        norm_schema.RMSNorm(),
        norm_schema.RMSNorm(unit_offset=True),
        norm_schema.PartialRMSNorm(),
        norm_schema.ScaleNorm(),
        norm_schema.DynamicTanh(),
    ],
)
def test_norms_in_bfloat16_are_float32_rounded_once(config: norm_schema.Norm) -> None:
    norm = drawn(make_norm(config, 12)).bfloat16()
    x = torch.from_numpy(X).bfloat16()
    assert torch.equal(norm(x), norm.float()(x.float()).bfloat16())


def test_a_layernorm_rounds_the_weight_to_which_1_was_added() -> None:
    norm = drawn(make_norm(norm_schema.LayerNorm(unit_offset=True, bias=False), 12)).bfloat16()
    x = torch.from_numpy(X).bfloat16()
    expected = F.layer_norm(x.float(), (12,), (1 + norm.weight).float(), eps=norm.eps).bfloat16()
    assert torch.equal(norm(x), expected)
    assert not torch.equal(norm(x), norm.float()(x.float()).bfloat16())


def test_the_cast_of_rmsnorm_affects_bfloat16_results() -> None:
    after, before = (drawn(make_norm(norm_schema.RMSNorm(cast=c), 12)) for c in ("after_weight", "before_weight"))
    before.load_state_dict(after.state_dict())
    x = torch.from_numpy(X).bfloat16()
    wide = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    w = after.bfloat16().weight
    before.bfloat16()
    torch.testing.assert_close(after(x), (wide * w.float()).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(before(x), wide.bfloat16() * w, rtol=0, atol=0)
    assert not torch.equal(after(x), before(x))


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("scope", ["head", "each_head", "width"])
def test_qk_norm_in_its_scopes(kind: str, scope: str) -> None:
    config = layer(f"attention.qk_norm={{kind: {kind}, scope: {scope}, eps: 0.1}}").attention
    norm, x = drawn(HeadNorm(config, 4)), RNG.normal(size=(2, 4, 5, 6))
    w, b = numbers(norm.norm.weight, 1), numbers(getattr(norm.norm, "bias", None), 0)
    assert w.shape == {"head": (6,), "each_head": (4, 6), "width": (24,)}[scope]
    expected = np.empty_like(x)
    for t in range(5):
        for h in range(4):
            across = x[:, :, t].reshape(2, 24) if scope == "width" else x[:, h, t]
            one = {"head": w, "each_head": w[h] if scope == "each_head" else w, "width": w}[scope]
            add = b[h] if scope == "each_head" and b.ndim else b
            whole = rmsnorm_by_hand(across, one, 0.1) if kind == "rmsnorm" else layernorm_by_hand(across, one, add, 0.1)
            expected[:, h, t] = whole[:, 6 * h : 6 * h + 6] if scope == "width" else whole
    close(norm(torch.from_numpy(x)), expected)


# --- activations and MLP ------------------------------------------------------------------------------------

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
FORMULAS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * (np.exp(np.minimum(x, 0)) - 1)),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "identity": lambda x: x,
}


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in kinds(activation_schema.Activation).items() if not kind.n_parameters)
)
def test_activation(name: str) -> None:
    x = np.linspace(-40, 40, 801)
    close(make_activation(name)(torch.from_numpy(x)), FORMULAS[name](x))


def test_xielu() -> None:
    activation, x = drawn(make_activation("xielu")), np.linspace(-6, 6, 101)
    a = np.log1p(np.exp(activation.alpha_p.item()))
    b = 0.5 + np.log1p(np.exp(activation.alpha_n.item()))
    expected = np.where(x > 0, a * x**2 + 0.5 * x, (np.expm1(np.minimum(x, -1e-6)) - x) * b + 0.5 * x)
    close(activation(torch.from_numpy(x)), expected)


def test_xielu_is_that_of_transformers() -> None:
    activation, theirs = drawn(make_activation("xielu")), XIELUActivation(dtype=torch.float64)
    theirs.load_state_dict(activation.state_dict(), strict=False)
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(activation(x), theirs(x), rtol=1e-10, atol=1e-12)


def test_xielu_starts_with_both_slopes_at_0_8() -> None:
    """Initial values of Huang 2024: softplus(alpha_p) = 0.8, and 1/2 + softplus(alpha_n) = 0.8."""
    constants = make_activation("xielu").constants
    assert math.log1p(math.exp(constants["alpha_p"])) == pytest.approx(0.8)
    assert 0.5 + math.log1p(math.exp(constants["alpha_n"])) == pytest.approx(0.8)


@pytest.mark.parametrize("kind", ["plain", "gated"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sub_norm", [True, False])
def test_mlp(kind: str, bias: bool, sub_norm: bool) -> None:
    choice = f"mlp={{kind: {kind}, activation: gelu, d_ff: 20, bias: {bias}, sub_norm: {sub_norm}}}".lower()
    mlp = drawn(MLP((chosen := layer(choice, "norm={kind: rmsnorm, eps: 0.1}")).dense, chosen))

    def project(name: str, x: np.ndarray) -> np.ndarray:
        linear = getattr(mlp, name)
        return x @ linear.weight.detach().numpy().T + numbers(linear.bias, 0.0)

    inner = project("up", X)
    inner = FORMULAS["gelu"](inner) if kind == "plain" else FORMULAS["gelu"](project("gate", X)) * inner
    if sub_norm:
        inner = rmsnorm_by_hand(inner, mlp.sub_norm.weight.detach().numpy(), 0.1)
    close(mlp(torch.from_numpy(X)), project("down", inner))


# --- attention ----------------------------------------------------------------------------------------------


def attention_by_hand(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, bias: np.ndarray, scale: float, cap: float | None
) -> np.ndarray:
    out = np.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h] @ k[b, h // group].T * scale + bias[b, h]
            scores = scores if cap is None else cap * np.tanh(scores / cap)
            out[b, h] = np_softmax(np.where(seen[b], scores, -np.inf), axis=-1) @ v[b, h // group]
    return out


def attended(config: LayerConfig, x: np.ndarray, kernel: str = "reference") -> tuple[Tensor, MultiHeadAttention]:
    attention = drawn(MultiHeadAttention(config.multi_head, replace(config.site_of("attention"), kernel=kernel)))
    tokens = torch.zeros(x.shape[:2], dtype=torch.int64)
    view = start_pass(tokens, None, None, None, None, torch.float64).context(config)
    return attention(torch.from_numpy(x), view), attention


def test_attention_is_torchs_multihead_attention() -> None:
    config = layer("attention={head_dim: 3, qkv_bias: true, out_bias: true}", "position.kind=none")
    got, ours = attended(config, X)
    theirs = nn.MultiheadAttention(12, 4, batch_first=True).double()
    parts = (ours.q, ours.k, ours.v)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    hidden = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    x = torch.from_numpy(X)
    torch.testing.assert_close(got, theirs(x, x, x, attn_mask=hidden)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("turned", ["order: after_qk_norm", "order: before_qk_norm"])
def test_attention_end_to_end(turned: str) -> None:
    """Projection, clip, norm and rotation in both orders, scale, soft cap, window, grouped heads, sub-norm and output."""
    config = layer(
        "attention={n_kv_heads: 2, window: 3, scale: 0.7, softcap: 1.5, clip_qkv: 2.0, qkv_bias: true, sub_norm: true}",
        "attention.qk_norm={kind: rmsnorm, eps: 0.1}",
        "norm={kind: rmsnorm, eps: 0.1}",
        f"position={{kind: rope, theta: 20, {turned}}}",
    )
    got, ours = attended(config, X)

    def heads(name: str) -> np.ndarray:
        linear = getattr(ours, name)
        projected = X @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        return np.clip(projected, -2, 2).reshape(2, 5, -1, 6).transpose(0, 2, 1, 3)

    def turn(x: np.ndarray) -> np.ndarray:
        angles = np.arange(5)[:, None] * 20.0 ** (-2 * np.arange(3) / 6)
        z = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)
        return np.concatenate((z.real, z.imag), -1)

    def placed(name: str) -> np.ndarray:
        w = getattr(ours, f"{name}_norm").norm.weight.detach().numpy()
        if "after" in turned:
            return turn(rmsnorm_by_hand(heads(name), w, 0.1))
        return rmsnorm_by_hand(turn(heads(name)), w, 0.1)

    at = np.arange(5)
    seen = np.broadcast_to((at <= at[:, None]) & (at > at[:, None] - 3), (2, 5, 5))
    mixed = attention_by_hand(placed("q"), placed("k"), heads("v"), seen, np.zeros((2, 4)), 0.7, 1.5)
    joined = mixed.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    joined = rmsnorm_by_hand(joined, ours.sub_norm.weight.detach().numpy(), 0.1)
    close(got, joined @ ours.out.weight.detach().numpy().T)


@pytest.mark.parametrize("eps", [None, 0.1])
def test_keys_as_values_and_the_norm_of_values(eps: float | None) -> None:
    """Values are the keys before their norm and rotation. Their own norm has no weight."""
    config = layer(
        f"attention={{n_kv_heads: 2, keys_as_values: true, qkv_bias: true, v_norm: {'null' if eps is None else {'eps': eps}}}}",
        "attention.qk_norm={kind: rmsnorm, eps: 0.1}",
        "position={kind: rope, theta: 20}",
    )
    got, ours = attended(config, X)

    def heads(name: str) -> np.ndarray:
        linear = getattr(ours, name)
        projected = X @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        return projected.reshape(2, 5, -1, 6).transpose(0, 2, 1, 3)

    def turned(name: str) -> np.ndarray:
        x = rmsnorm_by_hand(heads(name), getattr(ours, f"{name}_norm").norm.weight.detach().numpy(), 0.1)
        z = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * np.arange(5)[:, None] * 20.0 ** (-2 * np.arange(3) / 6))
        return np.concatenate((z.real, z.imag), -1)

    values = heads("k") if eps is None else rmsnorm_by_hand(heads("k"), np.ones(6), eps)
    seen = np.broadcast_to(np.tri(5, dtype=bool), (2, 5, 5))
    mixed = attention_by_hand(turned("q"), turned("k"), values, seen, np.zeros((2, 4)), 6**-0.5, None)
    joined = mixed.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    close(got, joined @ ours.out.weight.detach().numpy().T)


# --- visibility ---------------------------------------------------------------------------------------------

VISIBILITIES: dict[str, dict[str, Any]] = {
    "full": {},
    **{f"window {w}": {"window": w} for w in (1, 3, 7, 20)},
    "dilated": {"window": 3, "stride": 4},
    "dilated, stride below the window": {"window": 5, "stride": 2},
    "dilated, stride divides the window": {"window": 4, "stride": 2},
    "global": {"window": 3, "global_tokens": 2},
    "more global tokens than tokens": {"window": 2, "global_tokens": 30},
    "dilated and global": {"window": 4, "stride": 5, "global_tokens": 3},
    "global, stride divides the window": {"window": 6, "stride": 3, "global_tokens": 2},
    "blocks": {"blocks": visibility_schema.BlockSparse(size=4, summary=1)},
    "large blocks": {"blocks": visibility_schema.BlockSparse(size=7, summary=3)},
}


@pytest.mark.parametrize("name", VISIBILITIES)
@pytest.mark.parametrize("seq_len", [1, 5, 20, 41])
@pytest.mark.parametrize("sides", ["causal", "prefix", "two_sided"])
def test_visible_pairs_are_the_mask_counted(name: str, seq_len: int, sides: Any) -> None:
    attention = multi_head_schema.MultiHead(n_heads=1, visibility=sides, **VISIBILITIES[name])
    at = np.arange(seq_len)
    mask = visible(attention, at[:, None], at[None, :])
    assert visible_pairs(attention, seq_len) == mask.sum()


@pytest.mark.parametrize("name", VISIBILITIES)
def test_to_both_sides_a_token_sees_what_it_would_see_and_what_would_see_it(name: str) -> None:
    """Only blocks are not symmetric: the last keys are visible in later blocks, too."""
    rule, at = VISIBILITIES[name], np.arange(40)
    causal = visible(multi_head_schema.MultiHead(n_heads=1, **rule), at[:, None], at)
    both = visible(multi_head_schema.MultiHead(n_heads=1, visibility="two_sided", **rule), at[:, None], at)
    assert np.array_equal(both & np.tri(40, dtype=bool), causal)
    if "blocks" not in rule:
        assert np.array_equal(both, causal | causal.T)
    else:
        is_last = at % rule["blocks"].size >= rule["blocks"].size - rule["blocks"].summary
        in_block = at[:, None] // rule["blocks"].size == at // rule["blocks"].size
        assert np.array_equal(both, in_block | is_last)


@pytest.mark.parametrize("name", VISIBILITIES)
def test_a_prefix_is_two_sided_and_the_rest_causal(name: str) -> None:
    rule, at, n = VISIBILITIES[name], np.arange(30), 11
    causal, prefix, both = (
        visible(multi_head_schema.MultiHead(n_heads=1, visibility=sides, **rule), at[:, None], at, n)
        for sides in ("causal", "prefix", "two_sided")
    )
    assert np.array_equal(prefix[:n, :n], both[:n, :n])
    assert np.array_equal(prefix[n:], causal[n:])
    assert not prefix[:n, n:].any()


SEEN_BY_10 = {
    "window 3": [8, 9, 10],
    "dilated": [2, 6, 8, 9, 10],
    "global": [0, 1, 8, 9, 10],
    "dilated and global": [0, 1, 2, 5, 7, 8, 9, 10],
    "blocks": [3, 7, 8, 9, 10],
    "large blocks": [4, 5, 6, 7, 8, 9, 10],
}


@pytest.mark.parametrize("name", SEEN_BY_10)
def test_what_token_10_sees(name: str) -> None:
    attention = multi_head_schema.MultiHead(n_heads=1, **VISIBILITIES[name])
    mask = visible(attention, torch.tensor(10), torch.arange(14))
    assert torch.nonzero(mask).flatten().tolist() == SEEN_BY_10[name]
