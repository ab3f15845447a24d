"""Attention kernels: comparison with the formula, their limits, and the choice among them."""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic
from torch.nn import functional as F
from torch.nn.attention import flex_attention
from torch.profiler import ProfilerActivity, profile

from accelerator import Accelerator, FakeCuda, find_gpu
from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.kernel_choice import RULES, KernelNeeds
from archlab.config.components.work import Pass
from archlab.config.layers import layer_configs
from archlab.errors import UserError
from archlab.model import flex as flex_module
from archlab.model import kernels, masks
from archlab.model import products as products_module
from archlab.model.decoder import Decoder
from archlab.model.flex import flex
from archlab.model.kernels import (
    KERNELS,
    Kernel,
    blocked,
    choose_kernel,
    flex_widths,
    in_call,
    prefer_products,
    products,
    reference,
    sdpa,
)
from archlab.model.masks import NoMask, TensorMask, causal_tiles
from archlab.model.softmax import Softmax
from archlab.training import attention_kernels as measured
from archlab.training.attention_kernels import attention_kernels, products_up_to
from archlab.training.device import Device
from tiny import config

RNG = np.random.default_rng(0)


def weights_by_hand(
    q: np.ndarray, k: np.ndarray, seen: np.ndarray, bias: np.ndarray, cap: float | None, sink: float | None
) -> np.ndarray:
    """Return the weights [query, key] of one head."""
    scores = q @ k.T * 0.7 + bias
    scores = np.where(seen, scores if cap is None else cap * np.tanh(scores / cap), -np.inf)
    sinks = np.full((len(q), 1), -np.inf if sink is None else sink)
    return softmax(np.concatenate((scores, sinks), axis=-1), axis=-1)[:, :-1]


@pytest.fixture
def traced_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use flex_attention uncompiled, which supports float64 and gradients on a CPU."""
    monkeypatch.setattr(flex_module, "_compiled_flex", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)


@pytest.mark.usefixtures("traced_flex")
@pytest.mark.parametrize(
    ("kernel", "kv_heads", "masked", "biased", "sunk", "cap"),
    [
        (kernel, kv_heads, masked, biased, sunk, cap)
        for kernel in KERNELS
        for kv_heads in ([2] if kernel == "flex" else [4, 2, 1])
        for masked, biased, sunk, cap in product((False, True), (False, True), (False, True), (None, 0.8))
        if not RULES[kernel].lacks(
            KernelNeeds(softcap=cap is not None, bias=biased, mask="other" if masked else "causal", sinks=sunk)
        )
    ],
)
def test_kernels_are_the_formula(
    kernel: str,
    kv_heads: int,
    masked: bool,
    biased: bool,
    sunk: bool,
    cap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """flex is tested with one grouping, because torch groups its heads. The grid of tests/invariants has the others."""
    monkeypatch.setattr(products_module, "BLOCK", 3)
    q, k, v = (RNG.normal(size=(2, heads, 7, width)) for heads, width in ((4, 4), (kv_heads, 4), (kv_heads, 3)))
    seen = np.broadcast_to(np.tril(np.ones((7, 7), dtype=bool)), (2, 7, 7)).copy()
    if masked:
        seen &= (RNG.random(seen.shape) < 0.6) | np.eye(7, dtype=bool)
    bias, sinks = RNG.normal(size=(2, 4, 7, 7)) * biased, RNG.normal(size=4)
    got = KERNELS[kernel](
        torch.from_numpy(q),
        torch.from_numpy(k),
        torch.from_numpy(v),
        TensorMask(torch.from_numpy(seen)) if masked else None,
        torch.from_numpy(bias) if biased else None,
        Softmax(0.7, cap, sinks_H=torch.from_numpy(sinks) if sunk else None),
    )
    for b, h in np.ndindex(2, 4):
        key, sink = h // (4 // kv_heads), float(sinks[h]) if sunk else None
        weights = weights_by_hand(q[b, h], k[b, key], seen[b], bias[b, h], cap, sink)
        np.testing.assert_allclose(got[b, h], weights @ v[b, key], rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("traced_flex")
@pytest.mark.parametrize("kernel", ["sdpa", "flex", "blocked"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_sinks(kernel: str, masked: bool) -> None:
    q, k, v = (torch.from_numpy(RNG.normal(size=(2, heads, 7, 4))).requires_grad_() for heads in (4, 2, 2))
    sinks = torch.from_numpy(RNG.normal(size=4)).requires_grad_()
    mask = TensorMask(torch.ones(1, 7, 7, dtype=torch.bool).tril().triu(-2)) if masked else None

    def gradients(compute: Kernel) -> tuple[torch.Tensor, ...]:
        mixed = compute(q, k, v, mask, None, Softmax(0.7, sinks_H=sinks))
        return torch.autograd.grad(mixed.square().sum(), (q, k, v, sinks))

    for got, expected in zip(gradients(KERNELS[kernel]), gradients(reference), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("traced_flex")
@pytest.mark.parametrize(
    "mask", [None, NoMask(7, 7, torch.device("cpu")), TensorMask(torch.eye(7).bool().flip(0)[None])]
)
@pytest.mark.parametrize("sunk", [False, True])
def test_padding_of_flex_changes_nothing(mask: masks.Mask | None, sunk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, flex pads queries and keys, here to multiples of 4. No query sees the padding."""
    for module in (flex_module, masks):
        monkeypatch.setattr(module, "padded_length", lambda length, device: -length % 4 + length)
    q, k, v, bias = (
        torch.from_numpy(RNG.normal(size=s)) for s in [(2, 4, 7, 4), (2, 2, 7, 4), (2, 2, 7, 4), (2, 4, 7, 7)]
    )
    given = [x.requires_grad_() for x in (q, k, v, bias)]
    sinks = torch.from_numpy(RNG.normal(size=4)) if sunk else None
    found, expected = (
        (mixed := kernel(q, k, v, mask, bias, Softmax(0.7, 0.8, sinks_H=sinks)),
         *torch.autograd.grad(mixed.square().sum(), given))
        for kernel in (flex, reference)
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_on_a_gpu_flex_reads_a_multiple_of_128_tokens() -> None:
    lengths = {n: masks.padded_length(n, torch.device("cuda")) for n in (1, 127, 128, 129, 1000)}
    assert lengths == {1: 128, 127: 128, 128: 128, 129: 256, 1000: 1024}
    assert masks.padded_length(129, torch.device("cpu")) == 129


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_gradients_of_products(kv_heads: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of one block, a full block, and several blocks with a shorter last one."""
    monkeypatch.setattr(products_module, "BLOCK", 3)
    q, k, v = (
        torch.from_numpy(RNG.normal(size=(2, length, heads, width))).transpose(1, 2).requires_grad_()
        for heads, width in ((4, 4), (kv_heads, 4), (kv_heads, 5))
    )
    found, expected = (
        torch.autograd.grad(kernel(q, k, v, None, None, Softmax(0.7)).square().sum(), (q, k, v))
        for kernel in (products, reference)
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
@pytest.mark.parametrize("sunk", [False, True])
def test_dropout_drops_weights_and_scales_up_the_rest(kernel: str, sunk: bool) -> None:
    """With the identity as values, the output is the weights. A sink with the weight of 200 keys takes half."""
    q, k = torch.zeros(1, 1, 200, 4), torch.zeros(1, 1, 200, 4)
    seen = TensorMask(torch.ones(1, 200, 200, dtype=torch.bool))
    how = Softmax(1.0, dropout=0.25, sinks_H=torch.tensor([200.0]).log() if sunk else None)
    torch.manual_seed(0)
    weights = KERNELS[kernel](q, k, torch.eye(200)[None, None], seen, None, how)
    assert torch.allclose(weights, torch.where(weights > 0, (0.5 if sunk else 1) / 200 / 0.75, 0.0))
    # 40,000 draws: the standard deviation of the share is 0.002.
    assert (weights == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)


CPU: dict[str, Any] = {"on_cuda": False}


@pytest.mark.parametrize("v_dim", [8, 16, 24])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_on_a_cpu_torchs_kernel_is_the_fused_one(v_dim: int, sunk: bool, masked: bool) -> None:
    """Otherwise torch multiplies every query with every key, and stores all scores."""
    q, k, v = (torch.randn(1, 2, 9, width) for width in (16, 16, v_dim))
    mask = TensorMask(torch.ones(1, 9, 9, dtype=torch.bool).tril()) if masked else None
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        assert sdpa(q, k, v, mask, None, Softmax(1.0, sinks_H=torch.zeros(2) if sunk else None)).shape == v.shape
    used = {event.key for event in seen.key_averages() if event.key.startswith("aten::_scaled_dot_product")}
    assert used == {"aten::_scaled_dot_product_flash_attention_for_cpu"}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("queries", [7, 1])
def test_with_a_mask_heads_of_a_group_are_queries_if_that_is_faster(
    biased: bool, sunk: bool, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is faster on a GPU, where torch would otherwise store all scores.

    It is faster for one query on a CPU, too, where torch would otherwise read each key once per head.
    """
    q, k, v = (torch.randn(2, heads, n, 4, dtype=torch.float64) for heads, n in ((6, queries), (3, 7), (3, 7)))
    mask = TensorMask(torch.ones(1, 7, 7, dtype=torch.bool).tril().triu(-2)[:, -queries:])
    bias = torch.randn(2, 6, queries, 7, dtype=torch.float64) if biased else None
    how = Softmax(0.7, sinks_H=torch.randn(6, dtype=torch.float64) if sunk else None)
    grouped = list[bool]()
    fused = torch.nn.functional.scaled_dot_product_attention
    if queries > 1:
        monkeypatch.setattr(kernels, "_fuses_groups", lambda q, v, mask: mask is None)
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, enable_gqa, **more: grouped.append(enable_gqa) or fused(*args, enable_gqa=enable_gqa, **more),
    )
    expected = reference(q, k, v, mask, bias, how)
    torch.testing.assert_close(sdpa(q, k, v, mask, bias, how), expected, rtol=1e-10, atol=1e-12)
    assert grouped == [False]
    if queries == 1:  # always has a mask
        return
    sdpa(q, k, v, None, None, how)
    assert grouped == [False, True], "without a mask there is a kernel that knows groups"


@pytest.mark.usefixtures("traced_flex")
@pytest.mark.parametrize(
    ("rule", "times"),
    [
        ("model.attention.softcap=9", 0),  # a plain causal mask was made by the first pass
        ("model.attention.window=5", 1),
        ("model.attention.visibility=two_sided", 1),
    ],
)
def test_all_layers_share_the_tiles_of_a_mask(rule: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()  # after many soft caps, torch would trace them as variables, which fails
    monkeypatch.setattr(kernels, "choose_kernel", lambda name, needs: flex)  # as on a GPU
    model = Decoder(config(rule, "model.n_layers=3").model).eval()
    tokens = torch.zeros(2, 11, dtype=torch.int64)
    with torch.inference_mode():
        model(tokens)
    made, create = list[tuple[Any, ...]](), flex_attention.create_block_mask
    monkeypatch.setattr(flex_attention, "create_block_mask", lambda *a, **k: made.append(a) or create(*a, **k))
    model(tokens).sum().backward()  # in inference mode, torch would make tensors that cannot be saved for it
    assert len(made) == times


def test_tiles_are_made_on_the_device_of_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(masks, "compiled_once", lambda create: lambda *args, device: seen.append(device))
    causal_tiles.__wrapped__(128, 128, torch.device("cuda", 1))
    assert seen == [torch.device("cuda", 1)]


@pytest.mark.parametrize("mask", [None, NoMask(7, 7, torch.device("cpu"))], ids=["causal", "no mask"])
@pytest.mark.parametrize(
    ("dtype", "v_dim", "sunk", "capability", "knows_groups"),
    [
        (torch.bfloat16, 16, False, 8, True),
        (torch.float32, 16, False, 8, False),
        (torch.bfloat16, 8, False, 8, False),
        (torch.bfloat16, 16, True, 8, False),  # a sink makes keys wider than values
        (torch.float16, 16, False, 7, False),
    ],
)
def test_on_a_gpu_only_flash_attention_knows_groups(
    dtype: torch.dtype,
    v_dim: int,
    sunk: bool,
    capability: int,
    knows_groups: bool,
    mask: NoMask | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's other fused kernels refuse them, so that torch would store all scores."""
    find_gpu(monkeypatch, capability)
    q, k, v = (torch.randn(2, heads, 7, width, dtype=dtype) for heads, width in ((6, 16), (3, 16), (3, v_dim)))
    sinks = torch.randn(6) if sunk else None
    expected = reference(q, k, v, mask, None, Softmax(0.7, sinks_H=sinks))
    asked = list[bool]()
    fused = torch.nn.functional.scaled_dot_product_attention

    def seen(*tensors: FakeCuda, enable_gqa: bool, **more: Any) -> FakeCuda:
        asked.append(enable_gqa)
        return FakeCuda(fused(*(x.content for x in tensors), enable_gqa=enable_gqa, **more))

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
    there = Softmax(0.7, sinks_H=FakeCuda(sinks) if sinks is not None else None)
    with Accelerator():
        found = sdpa(*(FakeCuda(x) for x in (q, k, v)), mask, None, there)
    assert isinstance(found, FakeCuda)
    assert asked == [knows_groups]
    torch.testing.assert_close(found.content, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("needs", "able"),
    [
        ({"bias": True, "cache": "grows", "widths": (256, 192), "sinks": True}, ["flex", "sdpa", "reference"]),
        ({"softcap": True}, ["flex", "blocked", "reference"]),
        ({"dropout": True}, ["blocked", "sdpa", "reference"]),
        ({"float64": True}, ["blocked", "products", "sdpa", "reference"]),
        ({"widths": (64, 8)}, ["blocked", "products", "sdpa", "reference"]),
        ({"flex_widths": ()}, ["blocked", "products", "sdpa", "reference"]),
        ({"widths": (576, 512)}, ["blocked", "products", "sdpa", "reference"]),
        ({"flex_widths": range(65), "widths": (64, 64)}, ["flex", "blocked", "products", "sdpa", "reference"]),
        ({"flex_widths": range(65), "widths": (64, 80)}, ["blocked", "products", "sdpa", "reference"]),
        ({"widths": (160, 160)}, ["blocked", "products", "sdpa", "reference"]),
        (CPU | {"widths": (64, 8)}, ["flex", "blocked", "products", "sdpa", "reference"]),
        ({"gradients": True}, ["flex", "blocked", "products", "sdpa", "reference"]),
        (CPU, ["flex", "blocked", "products", "sdpa", "reference"]),
        (CPU | {"gradients": True}, ["blocked", "products", "sdpa", "reference"]),
        (CPU | {"gradients": True, "mask": "other"}, ["blocked", "sdpa", "reference"]),
        (CPU | {"sinks": True}, ["blocked", "sdpa", "reference"]),
        (CPU | {"cache": "fixed"}, ["blocked", "products", "sdpa", "reference"]),
        ({"softcap": True, "dropout": True}, ["blocked", "reference"]),
    ],
)
def test_a_kernel_does_it_or_is_refused(needs: dict[str, Any], able: list[str]) -> None:
    for name, kernel in KERNELS.items():
        if name in able:
            assert choose_kernel(name, KernelNeeds(**needs)) is kernel
        else:
            with pytest.raises(
                UserError, match=rf"kernel {name} does not support \w+.*; allowed: auto, {', '.join(able)}"
            ):
                choose_kernel(name, KernelNeeds(**needs))


SHORT = CPU | {"gradients": True, "queries": 512, "products_up_to": 512}


@pytest.mark.parametrize(
    ("needs", "chosen"),
    [
        ({}, sdpa),
        ({"bias": True, "on_cuda": False, "cache": "grows", "dropout": True, "sinks": True}, sdpa),
        ({"softcap": True}, flex),  # training on a GPU
        ({"softcap": True, "sinks": True, "gradients": True}, flex),
        ({"softcap": True, "on_cuda": False}, reference),
        ({"softcap": True, "cache": "grows"}, reference),
        ({"softcap": True, "cache": "fixed", "heads_per_key": 8}, flex),  # compiled decoding
        ({"softcap": True, "cache": "fixed", "heads_per_key": 6}, flex),
        ({"softcap": True, "widths": (8, 16)}, reference),  # torch refuses to compile flex
        ({"softcap": True, "widths": (16, 8)}, reference),
        ({"softcap": True, "widths": (16, 16)}, flex),
        ({"softcap": True, "widths": (256, 256)}, flex),  # Gemma 2
        ({"softcap": True, "widths": (512, 256)}, reference),
        ({"softcap": True, "widths": (8, 16), "on_cuda": False}, reference),
        ({"sinks": True}, flex),  # the full layers of gpt-oss
        ({"sinks": True, "cache": "grows"}, sdpa),
        ({"sinks": True, "cache": "fixed", "heads_per_key": 8}, flex),
        ({"sinks": True, "flex_widths": ()}, sdpa),
        ({"softcap": True, "flex_widths": ()}, reference),
        ({"mask": "other", "is_cut": True, "flex_widths": ()}, blocked),
        ({"sinks": True, "on_cuda": False}, sdpa),
        ({"softcap": True, "bias": True}, reference),
        ({"softcap": True, "dropout": True}, reference),
        ({"softcap": True, "float64": True}, reference),
        ({"mask": "other"}, flex),
        ({"mask": "other", "is_cut": True, "gradients": True, "sinks": True}, flex),
        ({"mask": "other", "is_cut": True, "dropout": True}, blocked),
        ({"mask": "other", "is_cut": True, "widths": (64, 264)}, blocked),
        ({"mask": "other", "is_cut": True, "softcap": True, "on_cuda": False}, blocked),
        ({"mask": "other", "is_cut": True, "bias": True}, sdpa),
        ({"mask": "other", "cache": "grows"}, sdpa),
        ({"mask": "other", "cache": "fixed"}, flex),
        ({"mask": "other", "cache": "fixed", "heads_per_key": 6}, sdpa),  # torch would not divide the keys
        ({"mask": "other", "cache": "fixed", "widths": (576, 576), "heads_per_key": 128}, sdpa),
        ({"mask": "other", "cache": "fixed", "on_cuda": False}, sdpa),
        ({"mask": "none", "cache": "fixed", "heads_per_key": 4}, sdpa),  # the keys of a source text
        ({"mask": "other", "on_cuda": False}, sdpa),
        (SHORT, products),
        (SHORT | {"queries": 513}, sdpa),
        (SHORT | {"products_up_to": 0}, sdpa),
        (SHORT | {"gradients": False}, sdpa),
        (SHORT | {"mask": "other"}, sdpa),
        (SHORT | {"softcap": True}, reference),
    ],
)
def test_auto_takes_the_best_kernel_that_serves(needs: dict[str, Any], chosen: Kernel) -> None:
    assert choose_kernel("auto", KernelNeeds(**needs)) is chosen


def test_a_call_asks_by_its_tensors() -> None:
    layer, exact = KernelNeeds(softcap=True), torch.zeros(1, 1, 1, 8, dtype=torch.float64, requires_grad=True)
    asked = in_call(layer, exact, exact, exact, None, None, mask=None, is_cached=False)
    assert asked == KernelNeeds(softcap=True, widths=(8, 8), on_cuda=False, float64=True, gradients=True)
    with torch.no_grad():
        asked = in_call(layer, *[exact.float()] * 3, None, None, mask=TensorMask(exact[0] > 0), is_cached=True)
    assert asked == KernelNeeds(softcap=True, mask="other", widths=(8, 8), on_cuda=False, cache="grows")


@pytest.mark.parametrize(
    ("capability", "shared_memory", "dtype", "widest"),
    [
        (7, 64, torch.float16, 0),  # T4
        (8, 163, torch.bfloat16, 256),  # A100
        (8, 99, torch.bfloat16, 128),  # RTX 3090, A10, L4
        (8, 99, torch.float32, 64),
        (9, 227, torch.float32, 128),  # H100
        (12, 99, torch.bfloat16, 128),  # RTX 5090
    ],
)
def test_the_tiles_of_flex_fit_into_the_shared_memory_of_a_gpu(
    capability: int, shared_memory: int, dtype: torch.dtype, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least that a block needs is computed from torch's own settings: a tile of queries, and tiles of keys and values
    for all stages but one."""
    find_gpu(monkeypatch, capability, shared_memory)
    widths = flex_widths(torch.device("cuda"), dtype)
    assert max(widths, default=0) == widest
    minor = 6 if (capability, shared_memory) == (8, 99) else 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (capability, minor))
    settings = CUDAConfigHeuristic()
    for width in widths:
        for found in settings.get_flex_attn_fwd_configs(width, dtype):
            keys_and_values = 2 * (found.num_stages - 1) * found.block_n
            padded = 1 << (width - 1).bit_length()  # Triton's tiles are powers of two
            # torch has settings of its own for 64, 128 and 256. Otherwise, leave a tenth for what is not counted here.
            room = 1024 * shared_memory * (1.0 if width in (64, 128, 256) else 0.9)
            assert (found.block_m + keys_and_values) * padded * dtype.itemsize <= room, width
        for found in settings.get_flex_decode_configs(width, dtype):
            keys_and_values = 2 * max(found.num_stages - 1, 1) * found.block_n
            assert (16 + keys_and_values) * padded * dtype.itemsize <= 1024 * shared_memory, width


def test_flex_needs_a_compiler_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    find_gpu(monkeypatch)
    monkeypatch.setattr(kernels, "has_compiler", lambda: False)
    kernels._can_compile.cache_clear()
    assert flex_widths(torch.device("cuda"), torch.bfloat16) == ()
    kernels._can_compile.cache_clear()


@pytest.mark.parametrize(("capability", "kernels"), [(7, {"reference": 2}), (9, {"flex": 2})])
def test_flex_is_not_chosen_on_gpus_for_which_torch_has_no_settings(
    capability: int, kernels: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a T4, the kernel of 128-wide heads would need more shared memory than there is."""
    find_gpu(monkeypatch, capability)
    q = FakeCuda(torch.zeros(1, 1, 4, 128))
    asked = in_call(KernelNeeds(softcap=True), q, q, q, None, None, mask=None, is_cached=False)
    assert choose_kernel("auto", asked) is KERNELS[next(iter(kernels))]
    soft_capped = config("model.attention.softcap=50", "model.n_layers=2", "model.attention.head_dim=16").model
    assert (
        attention_kernels(soft_capped, 32, packed=False, device=Device("cuda", torch.float32), products_up_to=0)
        == kernels
    )


def test_a_kernel_that_is_none() -> None:
    with pytest.raises(UserError, match="kernel 'flash'; allowed: auto, flex, blocked, products, sdpa, reference"):
        choose_kernel("flash", KernelNeeds())


@pytest.mark.parametrize(
    ("overrides", "seq_len", "packed", "expected"),
    [
        ((), 64, False, {"products": 2}),
        ((), 80, False, {"sdpa": 2}),
        (
            ("model.attention={kind: latent, kv_rank: 8, nope_dim: 6, rope_dim: 4, v_dim: 5}",),
            64,
            False,
            {"products": 2},
        ),
        (("model.dropout.attention=0.1",), 64, False, {"sdpa, whole": 2}),
        (("model.attention.window=32",), 2048, False, {"blocked": 2}),
        (("model.attention.window=32",), 64, False, {"sdpa, whole": 2}),
        ((), 2048, True, {"blocked": 2}),
        (("model.attention.softcap=3.0",), 2048, False, {"reference": 2}),
        (("model.position.kind=alibi",), 2048, False, {"sdpa, whole": 2}),
        (("model.layers={a: {attention.window: 32}, b: {}, pattern: [a, b]}",), 2048, False, {"blocked": 1, "sdpa": 1}),
    ],
)
def test_what_a_runs_record_says_of_kernels_is_what_a_pass_uses(overrides, seq_len, packed, expected, monkeypatch):
    """Check the functions that are called in a pass with gradients."""
    model = Decoder(config(*overrides, "model.max_seq_len=2048", "train.seq_len=16").model)
    prefer_products(model, 64)
    found = attention_kernels(
        model.config, seq_len, packed=packed, device=Device("cpu", torch.float32), products_up_to=64
    )
    assert found == expected
    used = Counter()
    for name, kernel in KERNELS.items():

        def seen(*given, name=name, kernel=kernel):
            is_whole = given[3] is not None or given[4] is not None or given[5].dropout > 0
            used[f"{name}, whole" if name == "sdpa" and is_whole else name] += 1
            return kernel(*given)

        monkeypatch.setitem(KERNELS, name, seen)
    tokens = torch.zeros(1, seq_len, dtype=torch.int64)
    model(tokens, documents=tokens if packed else None)
    assert used == expected


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_price_and_record_agree_on_what_dropout_computes(dropout):
    """torch's fused kernel has no dropout on a CPU, so that all scores are computed; on a GPU it has dropout."""
    q = torch.zeros(1, 2, 64, 16, requires_grad=True)
    with profile() as seen:
        F.scaled_dot_product_attention(q, q, q, is_causal=True, dropout_p=dropout)
    fused = {event.key for event in seen.key_averages() if "flash" in event.key}
    assert bool(fused) == (dropout == 0)

    model = config(f"model.dropout.attention={dropout}").model
    layer = layer_configs(model)[0]
    attention, site = layer.attention, layer.site_of("attention")
    assert isinstance(attention, AnyAttention)
    work = Pass(texts=1, tokens=64, counting="computed")
    (scores,) = (each for each in attention.work(site, work) if each.kind == "attention")
    pairs = 64 * 65 // 2 if fused else 64**2
    assert scores.flops == 2 * attention.n_heads * 2 * attention.query_width * pairs
    for device, expected in (("cpu", "sdpa" if fused else "sdpa, whole"), ("cuda", "sdpa")):
        found = attention_kernels(model, 64, packed=False, device=Device(device, torch.float32), products_up_to=0)
        assert found == {expected: 2}


@pytest.mark.parametrize(("gain", "expected"), [(2.0, 512), (1.05, 0)])
def test_products_are_used_if_they_were_measured_to_be_faster(gain, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(measured, "_gain_of_products", lambda: gain)
    products_up_to.cache_clear()
    assert products_up_to(Device("cpu", torch.bfloat16)) == expected
    monkeypatch.setattr(measured, "_gain_of_products", lambda: pytest.fail("measured once more"))
    assert products_up_to(Device("cpu", torch.float32)) == products_up_to(Device("cuda", torch.bfloat16)) == 0
    products_up_to.cache_clear()
    assert products_up_to(Device("cpu", torch.bfloat16)) == expected, "kept for other processes"
    products_up_to.cache_clear()
