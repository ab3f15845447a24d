"""Attention kernels in training: the kernel of each layer, and whether `products` is fast on this machine."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.kernel_choice import RULES, kernel_for
from archlab.config.components.visibility import hidden_keys
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.data.file_cache import cached
from archlab.model.kernels import flex_widths, products, sdpa
from archlab.model.masks import Visible
from archlab.model.softmax import Softmax
from archlab.training.device import Device

LONG = 1024
"""Window length, in tokens, from which `slow_attention` warns about kernels that score all query-key pairs."""

SHORT = 512
"""Longest window, in tokens, for the kernel `products`, whose memory grows with the square of the length."""

WORTHWHILE = 1.1
"""Smallest speedup over torch's kernel at which `products` is used.

A smaller speedup would not justify the larger rounding errors of `products`.
"""


@cache
def products_up_to(device: Device) -> int:
    """Return the longest window, in tokens, that trains faster with `products` than with torch's fused kernel.

    Return 0 if no window does. `products` can be faster only on a CPU in bfloat16, where torch's kernel is slower than
    in float32. The speed is measured once per machine. On a machine whose bfloat16 matrix products are twice as fast as
    float32 ones, `products` takes a third to two thirds of the time of torch's kernel. On other machines, `products`
    and torch's kernel are equally fast.
    """
    if device.type != "cpu" or device.dtype is not torch.bfloat16:
        return 0
    key = ["attention by products", dict(torch.cpu.get_capabilities()), torch.__version__, torch.get_num_threads()]
    return SHORT if cached(key, [], lambda: _gain_of_products() > WORTHWHILE) else 0


def _gain_of_products() -> float:
    own = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, n, 256, 64, generator=own, device="cpu").bfloat16().requires_grad_() for n in (4, 2, 2))
    shortest = {kernel: float("inf") for kernel in (sdpa, products)}
    for _ in range(10):
        for kernel in shortest:
            start = time.perf_counter()
            kernel(q, k, v, None, None, Softmax(0.125)).sum().backward()
            shortest[kernel] = min(shortest[kernel], time.perf_counter() - start)
    return shortest[sdpa] / shortest[products]


def attention_kernels(
    model: ModelConfig,
    seq_len: int,
    runs: tuple[range, ...] | None = None,
    *,
    packed: bool,
    device: Device,
    products_up_to: int,
) -> dict[str, int]:
    """Return a mapping from kernel names to the number of layers that use each kernel.

    The kernels `sdpa, whole` and `reference` score all query-key pairs, including masked ones. If several processes
    divide each window, `runs` contains ranges of token indices: the part of the window that this process has.
    """
    keys_1S = torch.arange(seq_len)[None]
    queries_1T = keys_1S if runs is None else torch.cat([keys_1S[:, run.start : run.stop] for run in runs], 1)
    starts_1T = queries_1T if packed else None
    kernels = Counter[str]()
    layers = layer_configs(model)
    for layer in dict.fromkeys(layers):
        attention = layer.attention
        if not isinstance(attention, AnyAttention):
            continue
        mask_kind = "other" if packed or runs is not None else hidden_keys(attention, seq_len)
        mask = Visible(attention, queries_1T, keys_1S, starts_BQ=starts_1T, is_whole=runs is None, runs=runs)
        needs = replace(
            attention.kernel_needs(layer.site_of("attention")),
            mask=mask_kind,
            is_cut=mask_kind == "other" and mask.is_worth_cutting,
            sinks=getattr(attention, "sinks", False),
            widths=(attention.query_width, getattr(attention, "v_dim", attention.query_width)),
            on_cuda=device.type == "cuda",
            flex_widths=flex_widths(torch.device(device.type), device.dtype),
            gradients=True,
            queries=queries_1T.shape[1],
            products_up_to=products_up_to,
        )
        kernel = kernel_for("auto", needs)
        is_whole = kernel == "sdpa" and RULES[kernel].pairs(needs) == "all"
        kernels[f"{kernel}, whole" if is_whole else kernel] += layers.count(layer)
    return dict(kernels)


def slow_attention(kernels: Mapping[str, int], seq_len: int) -> str | None:
    """Return a warning if windows are long and some layers also score masked query-key pairs; otherwise None."""
    slow = {name: n for name, n in kernels.items() if name in ("sdpa, whole", "reference")}
    if not slow or seq_len < LONG:
        return None
    listed = " and ".join(f"{n} with kernel {name.partition(',')[0]}" for name, n in slow.items())
    return f"some layers compute the attention scores of all query-key pairs, even of masked ones: {listed}"
