"""Multi-head attention with all its options, and latent attention, compared with a reference written out per query."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.core.merge import Raw
from archlab.config.io import build_config
from archlab.config.layers import LayerConfig, layer_configs
from archlab.model.arithmetic import at_least_float32
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context, ForwardPass
from archlab.model.latent_attention import LatentAttention
from archlab.model.layer import make_component
from tests.reference import attention as by_hand
from tests.reference.attention import Rope, Temperature, Yarn, magnitude, within_chunk, within_window

RNG = np.random.default_rng(0)
T, D = 23, 12
X = RNG.normal(size=(T, D))


def layer(attention: Raw, position: Raw) -> LayerConfig:
    model = {"vocab_size": 7, "d_model": D, "n_layers": 1, "attention": attention, "position": position}
    return layer_configs(build_config({"model": model}).model)[0]


def drawn(config: LayerConfig, kernel: str = "reference") -> Any:
    """Return the layer's attention in float64 with random parameters: a sink of 0 or a norm weight of 1 would hide errors."""
    module = make_component(config.attention, replace(config.site_of("attention"), kernel=kernel)).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.from_numpy(RNG.normal(size=parameter.shape))
            parameter.copy_(drawn / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.5 + drawn)
    return module


def at(config: LayerConfig, first: int) -> Context:
    """Return the context of a pass over tokens at positions first, first + 1, ..., without earlier tokens."""
    positions = first + torch.arange(T)[None]
    return ForwardPass(positions, torch.full((1, 1), first + T), None, False, False, None, None, torch.float64).context(
        config, {}
    )


def weights(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def close(got: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-10, atol=1e-11)


# --- multi-head -----------------------------------------------------------------------------------------------

NOWHERE: Raw = {"kind": "none"}
ROPE: Raw = {"kind": "rope", "theta": 50.0}
TRANSFORMER_XL: Raw = {"kind": "transformer_xl"}
YARN: Raw = {"kind": "yarn", "factor": 8.0, "original_max_seq_len": 16, "beta_fast": 4.0}

MULTI_HEAD: dict[str, tuple[Raw, Raw, dict[str, Any]]] = {
    "plain": ({}, ROPE, {"rotate": Rope(6, 50.0)}),
    "sinks": ({"sinks": True}, ROPE, {"rotate": Rope(6, 50.0)}),
    "sinks, window": ({"sinks": True, "window": 3}, NOWHERE, {"sees": within_window(3)}),
    "gate per element": ({"gate": {}}, NOWHERE, {"gate": "sigmoid"}),
    "gate per head": ({"gate": {"per": "head", "activation": "softplus"}}, NOWHERE, {"gate": "softplus"}),
    "gate with a bias": ({"gate": {"bias": True}, "v_dim": 3}, NOWHERE, {"gate": "sigmoid"}),
    "narrow values": ({"v_dim": 4, "qkv_bias": True, "out_bias": True}, NOWHERE, {}),
    "wide values, sinks": ({"v_dim": 9, "sinks": True}, ROPE, {"rotate": Rope(6, 50.0)}),
    "Transformer-XL": ({}, TRANSFORMER_XL, {}),
    "Transformer-XL, window, sinks": (
        {"window": 3, "sinks": True, "v_dim": 4, "qkv_bias": True},
        TRANSFORMER_XL,
        {"sees": within_window(3)},
    ),
    "temperature": (
        {"temperature": {"beta": 0.7, "length": 5, "offset": 1}},
        ROPE,
        {"rotate": Rope(6, 50.0), "temperature": Temperature(0.7, 5, 1)},
    ),
    "sinks, a temperature that rises at every token": (  # the first query sees several keys, too
        {"sinks": True, "temperature": {"beta": 0.7, "length": 1}},
        NOWHERE,
        {"temperature": Temperature(0.7, 1, 0)},
    ),
    "chunks": ({"blocks": {"size": 5, "summary": 0}}, ROPE, {"rotate": Rope(6, 50.0), "sees": within_chunk(5)}),
    "yarn": (
        {},
        ROPE | {"scaling": YARN | {"truncate": False}, "pairing": "interleaved"},
        {"rotate": Rope(6, 50.0, interleaved=True, yarn=Yarn(8.0, 16, 4.0, truncate=False))},
    ),
}


@pytest.mark.parametrize("name", MULTI_HEAD)
@pytest.mark.parametrize("first", [0, 101])
def test_multi_head_attention(name: str, first: int) -> None:
    attention, position, reference = MULTI_HEAD[name]
    config = layer({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "scale": 0.8, **attention}, position)
    for kernel in ("reference", "sdpa"):
        module = drawn(config, kernel)
        assert isinstance(module, MultiHeadAttention)
        expected = by_hand.multihead(X, weights(module), n_heads=4, n_kv_heads=2, scale=0.8, first=first, **reference)
        close(module(torch.from_numpy(X)[None], at(config, first))[0], expected)


def test_temperature_starts_after_its_length() -> None:
    """It starts at position + offset = length, which is position 7."""
    config = layer({"n_heads": 2, "temperature": {"beta": 0.5, "length": 8, "offset": 1}}, NOWHERE)
    module, x = drawn(config), torch.from_numpy(X)[None]
    context = at(config, 0)
    warm = module(x, context)
    module.config = module.config.model_copy(update={"temperature": None})
    plain = module(x, context)
    moved = ~torch.isclose(warm, plain, rtol=0, atol=1e-12).all(-1)[0]
    assert moved.nonzero().flatten().tolist() == list(range(7, T))


def test_without_sinks_gate_or_temperature_nothing_is_learned_for_them() -> None:
    names = {name.split(".")[0] for name in weights(drawn(layer({"n_heads": 2}, NOWHERE)))}
    assert names == {"q", "k", "v", "out"}


# --- latent ---------------------------------------------------------------------------------------------------

LATENT: Raw = {"kind": "latent", "n_heads": 3, "q_rank": 7, "kv_rank": 5, "nope_dim": 4, "rope_dim": 6, "v_dim": 8}
SIZES: dict[str, Any] = {"n_heads": 3, "nope_dim": 4, "v_dim": 8, "scale": 10**-0.5}
DEEPSEEK = Yarn(8.0, 16, 4.0, mscale=0.7, mscale_all_dim=1.3)

LATENTS: dict[str, tuple[Raw, Raw, dict[str, Any]]] = {
    "interleaved": ({}, ROPE | {"pairing": "interleaved"}, {"rotate": Rope(6, 50.0, interleaved=True)}),
    "halves": ({}, ROPE, {"rotate": Rope(6, 50.0)}),
    "not rotated": ({}, NOWHERE, {}),
    "partly rotated": ({}, ROPE | {"fraction": 0.67}, {"rotate": Rope(4, 50.0)}),
    "queries of the stream": ({"q_rank": None}, ROPE, {"rotate": Rope(6, 50.0)}),
    "biases": ({"qkv_bias": True, "out_bias": True, "norm_eps": 0.3}, NOWHERE, {"eps": 0.3}),
    "biases, queries of the stream": ({"q_rank": None, "qkv_bias": True}, NOWHERE, {}),
    "values as wide as the parts that are not rotated": ({"v_dim": None}, NOWHERE, {"v_dim": 4}),
    "Transformer-XL": ({}, TRANSFORMER_XL, {}),
    "window": ({"window": 4}, ROPE, {"rotate": Rope(6, 50.0), "sees": within_window(4)}),
    "chunks": ({"blocks": {"size": 6, "summary": 0}}, NOWHERE, {"sees": within_chunk(6)}),
    "yarn": (
        {"scale": 10**-0.5 * magnitude(8.0, 1.3) ** 2},
        ROPE | {"scaling": YARN | {"attention_factor": DEEPSEEK.amplitude()}},
        {"rotate": Rope(6, 50.0, yarn=DEEPSEEK), "scale": 10**-0.5 * magnitude(8.0, 1.3) ** 2},
    ),
}


@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.parametrize("first", [0, 101])
def test_latent_attention(name: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expanded form of training, and the absorbed form."""
    attention, position, reference = LATENTS[name]
    config = layer(LATENT | attention, position)
    for kernel in ("reference", "sdpa"):
        module = drawn(config, kernel)
        assert isinstance(module, LatentAttention)
        expected = by_hand.latent(X, weights(module), first=first, **(SIZES | reference))
        close(module(torch.from_numpy(X)[None], at(config, first))[0], expected)
        monkeypatch.setattr(module, "expanded", module.absorbed)
        close(module(torch.from_numpy(X)[None], at(config, first))[0], expected)


def test_absorbing_is_for_few_new_tokens() -> None:
    """With DeepSeek-V3's sizes, the absorbed form costs 576 + 576 multiplications per query, head and key.

    The expanded form costs 192 + 128, and 512 * 256 once per key.
    """
    sizes = {"n_heads": 2, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64}
    module = LatentAttention(*_latent(layer({"kind": "latent", **sizes}, NOWHERE)))
    few = 512 * 256 // (576 + 576 - 192 - 128)
    assert few == 157
    assert [module.config.absorbing_is_less(n) for n in (1, few, few + 1, 4096)] == [True, True, False, False]


def _latent(config: LayerConfig) -> tuple[Any, Site]:
    return config.attention, config.site_of("attention")


@pytest.mark.parametrize("under", ["bfloat16", "autocast"])
def test_absorbed_is_near_float64_in_bfloat16(under: str) -> None:
    """One rounding is 2^-9, and the expanded form of the reference has an error as large."""
    config = layer(LATENT, ROPE)
    module, context, x = drawn(config), at(config, 0), torch.from_numpy(X)[None]
    exact = module(x, context)
    errors = []
    for form in ("expanded", "absorbed"):
        module.expanded = getattr(LatentAttention, form).__get__(module)
        with torch.autocast("cpu", torch.bfloat16, enabled=under == "autocast"), torch.no_grad():
            narrow = module.bfloat16() if under == "bfloat16" else module.float()
            got = narrow(x.to(torch.bfloat16 if under == "bfloat16" else torch.float32), context)
        errors.append(((at_least_float32(got).double() - exact).square().mean().sqrt() / exact.std()).item())
        module.double()
    assert 0 < errors[0] < 2**-6
    assert 0 < errors[1] < 2**-6
