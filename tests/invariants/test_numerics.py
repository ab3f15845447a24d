"""bfloat16 compared with float64: the whole model for every choice, and parts that are computed in float32."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import grid
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archlab.config.components import norm as norm_schema
from archlab.config.components import position as position_schema
from archlab.config.components.multi_head import MultiHead
from archlab.config.layers import layer_configs
from archlab.exchange.configs import load_config
from archlab.model import products as products_module
from archlab.model.activations import make_activation
from archlab.model.kernels import Kernel, products, reference, sdpa
from archlab.model.masks import TensorMask
from archlab.model.norms import make_norm
from archlab.model.positions import AlibiBias, ShawBias, SinusoidalPositions, T5Bias
from archlab.model.rotary import rotation
from archlab.model.router import Router
from archlab.model.softmax import Softmax

BOUND = 4
"""Largest error of a bfloat16 model relative to exact arithmetic with weights rounded to bfloat16.

Both include how much a config magnifies rounding. In 53 configs of the grid the bfloat16 model's error was 1.2 to 2.5
times as large. It was 0.007 of the logits' standard deviation in the median and 0.034 at worst.
"""


def error(got: Tensor, exact: Tensor, spared: int = 0) -> float:
    """Return the relative root mean square error, without the `spared` tokens with the largest errors."""
    by_token = (got.double() - exact).square().mean(-1).flatten().sort().values
    return (by_token[: len(by_token) - spared].mean().sqrt() / exact.std()).item()


def routers(model: nn.Module) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


@contextmanager
def experts_chosen(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield the choices of all routers of a pass, in order."""
    chosen: list[Tensor] = []
    hooks = [r.register_forward_hook(lambda _, x, routing: chosen.append(routing.chosen_NK)) for r in routers(model)]
    yield chosen
    for hook in hooks:
        hook.remove()


def with_experts(model: nn.Module, chosen: list[Tensor]) -> nn.Module:
    """Return the model with fixed choices, regardless of scores."""
    for router, of_router in zip(routers(model), chosen, strict=True):
        router.choose = lambda _, of_router=of_router: of_router
    return model


@pytest.mark.parametrize("index", range(len(grid.grid())))
def test_a_bfloat16_forward_is_near_float64(index: int) -> None:
    """Both use the same experts: if two scores are nearly equal, rounding changes the choice, which is another error."""
    model, tokens = grid.model(index), grid.tokens(2)
    with torch.no_grad(), experts_chosen(model) as chosen:
        exact = model(tokens)
    with torch.no_grad():
        rounded = with_experts(copy.deepcopy(model).bfloat16().double(), chosen)(tokens)
        pure = with_experts(copy.deepcopy(model).bfloat16(), chosen)(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = with_experts(copy.deepcopy(model).float(), chosen)(tokens)
    assert pure.dtype is torch.bfloat16
    # Inputs of a recurrent mixer may nearly cancel, and its norm then magnifies the rounding of that token. In the worst
    # config the largest error of 52 tokens is 0.8, and the median 0.01.
    # SparseMixer leaves out an expert at a limit, and rounding moves up to three of the 52 tokens over it.
    jumps = any(router.config.sparsemixer is not None for router in routers(model))
    spared = 3 * jumps + 2 * any(layer.mixer.kind != "none" for layer in model.layer_configs)
    of_weights = error(rounded, exact, spared)
    assert 0 < error(pure, exact, spared) < BOUND * of_weights
    assert 0 < error(mixed, exact, spared) < BOUND * of_weights


@pytest.mark.parametrize("under", ["bfloat16", "autocast"])
def test_angles_far_out_are_float32(under: str) -> None:
    """In bfloat16, position 10,000 would be 9,984, and cos and sin would be wrong."""
    positions = torch.tensor([[10_000, 9_999]])
    config = position_schema.Rope(theta=1e4)
    with torch.autocast("cpu", torch.bfloat16, enabled=under == "autocast"):
        turned = rotation(config, 64, positions, torch.tensor([[10_001]]), torch.bfloat16)
        waves = SinusoidalPositions(position_schema.Sinusoidal(), 64, 100)(positions, torch.bfloat16)
    angles = np.array([10_000, 9_999])[:, None] * 1e4 ** (-np.arange(0, 64, 2) / 64)
    assert turned.cos.dtype is torch.float32
    # the angle's rounding error: a few times 10,000 * 2^-24
    np.testing.assert_allclose(turned.cos[0, 0, :, :32], np.cos(angles), atol=4e-3)
    np.testing.assert_allclose(turned.sin[0, 0, :, 32:], np.sin(angles), atol=4e-3)
    assert waves.dtype is torch.bfloat16
    np.testing.assert_allclose(waves[0, :, 0::2].float(), np.sin(angles), atol=2**-8)


@pytest.mark.parametrize("kernel", [reference, sdpa])
@pytest.mark.parametrize("under", ["bfloat16", "autocast"])
def test_scores_and_softmax_are_float32(kernel, under: str) -> None:
    """The differences of large scores matter: in bfloat16, a score of 200 is rounded to a multiple of 1."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    q, k, v = (torch.randn(1, 2, 300, 64, generator=generator).bfloat16() for _ in range(3))
    q = q * 4
    how = Softmax(scale=1.0, softcap=None, dropout=0.0)
    exact = reference(q.double(), k.double(), v.double(), None, None, how)
    with torch.autocast("cpu", torch.bfloat16, enabled=under == "autocast"):
        got = kernel(q, k, v, None, None, how)
    assert got.dtype is torch.bfloat16
    assert error(got, exact) < 2**-8


@pytest.mark.parametrize(("size", "bound"), [(1, 2**-7), (4, 2**-5)])
def test_products_round_scores_and_weights(size: int, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They round to bfloat16. Errors of outputs and gradients are below 2^-7 if scores have a standard deviation of 1.

    With a deviation of 4 they are below four times as much, because the rounding of a score grows with it.
    """
    monkeypatch.setattr(products_module, "BLOCK", 64)  # each block rounds the gradients of keys and values once more
    generator = torch.Generator().manual_seed(0)
    q, k, v, gradient = (torch.randn(2, n, 300, 64, generator=generator).bfloat16() for n in (4, 2, 2, 4))

    def computed(kernel: Kernel, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        out = kernel(*leaves, None, None, Softmax(size / 8))
        return out.detach(), *torch.autograd.grad(out, leaves, gradient.to(dtype))

    for got, exact in zip(computed(products, torch.bfloat16), computed(reference, torch.float64), strict=True):
        assert error(got, exact) < bound


def test_many_small_weights_add_up() -> None:
    """With 8,192 equal weights, a bfloat16 sum of exponentials would stop growing at 256."""
    q, k, v = (torch.zeros(1, 1, 8192, 16).bfloat16() for _ in range(3))
    out = reference(
        q[:, :, -1:], k, v + 1, TensorMask(torch.ones(1, 1, 8192, dtype=torch.bool)), None, Softmax(1.0, None, 0.0)
    )
    assert out.float().mean().item() == pytest.approx(1, rel=2**-7)


WIDE_NORMS = {
    "layernorm": norm_schema.LayerNorm(unit_offset=True),
    "rmsnorm": norm_schema.RMSNorm(),
    "rmsnorm, cast before the weight": norm_schema.RMSNorm(cast="before_weight"),
}


@pytest.mark.parametrize("name", WIDE_NORMS)
@pytest.mark.parametrize("under", ["bfloat16", "autocast"])
def test_norms_are_float32(name: str, under: str) -> None:
    """The mean of 4,096 squares has an offset that bfloat16 sums would lose."""
    x = (torch.randn(4, 4096, generator=torch.Generator(torch.get_default_device()).manual_seed(0)) + 3).bfloat16()
    norm = make_norm(WIDE_NORMS[name], 4096)
    for parameter in norm.parameters():
        torch.nn.init.ones_(parameter)
    exact = copy.deepcopy(norm).double()(x.double())
    with torch.autocast("cpu", torch.bfloat16, enabled=under == "autocast"):
        got = norm.bfloat16()(x)
    assert got.dtype is torch.bfloat16
    # one rounding of the result; with the cast before the weight, also one of the product with the weight
    assert ((got.double() - exact).abs() <= 2**-8 * exact.abs()).all()


def test_biases_of_far_keys_are_float32() -> None:
    distance, q = torch.tensor([[[4097, 4099]]]), torch.randn(1, 8, 1, 16).bfloat16()
    heads = layer_configs(load_config("tiny-llama", "model.attention={n_heads: 8}").model)[0].attention
    alibi = AlibiBias(position_schema.Alibi(), heads)(distance, q)
    np.testing.assert_array_equal(alibi[0, :, 0], -np.outer(2.0 ** -np.arange(1, 9), [4097, 4099]))
    t5, shaw = (
        T5Bias(position_schema.T5(), heads),
        ShawBias(position_schema.Shaw(), MultiHead(n_heads=8, head_dim=16, scale=0.3)),
    )
    for module in (t5, shaw):
        torch.nn.init.normal_(module.weight)
    assert t5(distance, q).dtype is torch.float32
    exact = q.double() @ shaw.weight[-1].double() * 0.3
    assert error(shaw(distance, q), exact[..., None].expand(-1, -1, -1, 2)) < 1e-6
    with torch.autocast("cpu", torch.bfloat16):
        assert error(shaw(distance, q), exact[..., None].expand(-1, -1, -1, 2)) < 1e-6


def test_xielu_squares_in_float32() -> None:
    activation, x = make_activation("xielu"), torch.linspace(-8, 8, 500).bfloat16()
    for parameter in activation.parameters():
        torch.nn.init.constant_(parameter, 0.3)
    exact = copy.deepcopy(activation).double()(x.double())
    assert ((activation(x).double() - exact).abs() <= 2**-8 * exact.abs() + 1e-30).all()
