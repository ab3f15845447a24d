"""Of which kind an operation is, by its name; and where a computation's time goes."""

import os
from collections.abc import Callable
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile

from archlab.config.components.work import Kind

NamedKind = Kind | Literal["compiled"]
"""compiled: what a compiler has made of several operations, mostly element-wise ones."""

_BY_NAME: tuple[tuple[NamedKind, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product", "flash", "fmha", "flex_attention", "triton_tem", "causal_products", "bmm")),
    ("products", ("mm", "linear", "grouped", "int8pack", "nvjet", "cutlass")),
    ("convolutions", ("convolution",)),
    ("loss", ("log_softmax", "logsoftmax", "nll_loss", "cross_entropy", "logsumexp")),
    ("softmax", ("_softmax",)),
    ("optimiser", ("adam", "vector_norm", "foreach")),
    ("compiled", ("cpp_fused", "triton_", "compiledfxgraph")),
    ("embedding", ("embedding",)),
)
"""What an operation's name contains, in small letters; the first that fits."""


def kind_of(name: str) -> NamedKind | None:
    """None for one that may be anything: a sum, a copy, a product of single numbers."""
    lower = name.lower()
    return next((kind for kind, parts in _BY_NAME if any(part in lower for part in parts)), None)


def time_by_kind(compute: Callable[[], object], device_type: str) -> dict[str, float]:
    """Share of one call's time that each kind of operation takes, most first. What only its module would tell, norms
    and activations, is element-wise here."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or its library writes lines to stderr
    on_cuda = device_type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]) as seen:
        compute()
        if on_cuda:
            torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in seen.key_averages():
        kind = kind_of(event.key) or "element-wise"
        found[kind] = found.get(kind, 0.0) + (event.self_device_time_total if on_cuda else event.self_cpu_time_total)
    total = sum(found.values())
    return {kind: found[kind] / total for kind in sorted(found, key=lambda kind: -found[kind])}
