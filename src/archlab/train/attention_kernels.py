"""Which kernel computes the attention of each layer in training, for the run's record."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch

from archlab.config.any_attention import AnyResolved
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.visibility import is_plain_causal
from archlab.model.kernels import KERNELS, choose_kernel, needs_of
from archlab.model.masks import Visible

LONG = 1024
"""Tokens from which a kernel that multiplies every query with every key is worth a note."""


def attention_kernels(model: ModelConfig, seq_len: int, *, packed: bool, on_cuda: bool) -> dict[str, int]:
    """Name of a kernel -> how many layers use it; `sdpa, whole` and `reference` multiply every query with every key."""
    index_1T = torch.arange(seq_len)[None]
    found = Counter[str]()
    layers = layer_configs(model)
    for layer in dict.fromkeys(layers):
        attention = layer.attention
        if not isinstance(attention, AnyResolved):
            continue
        masked = packed or not is_plain_causal(attention, seq_len)
        mask = Visible(attention, index_1T, index_1T, starts_BQ=index_1T if packed else None, is_whole=True)
        needs = replace(
            needs_of(attention, layer),
            masked=masked,
            is_cut=masked and mask.is_worth_cutting,
            sinks=getattr(attention, "sinks", False),
            width=max(attention.query_width, attention.v_dim),
            on_cuda=on_cuda,
            gradients=True,
        )
        kernel = choose_kernel("auto", needs)
        name = next(name for name, limits in KERNELS.items() if limits.kernel is kernel)
        found[f"{name}, whole" if name == "sdpa" and (masked or needs.bias) else name] += layers.count(layer)
    return dict(found)


def slow_attention(kernels: Mapping[str, int], seq_len: int) -> str | None:
    """A note for people; None where nothing that is hidden is computed, or texts are short."""
    slow = {name: n for name, n in kernels.items() if name in ("sdpa, whole", "reference")}
    if not slow or seq_len < LONG:
        return None
    listed = " and ".join(f"{n} by {name.partition(',')[0]}" for name, n in slow.items())
    return f"attention multiplies every query with every key, seen or not, in some layers: {listed}"
