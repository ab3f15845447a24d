"""Where a computation's time goes, by kind of operation."""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_KINDS = (
    ("attention", ("scaled_dot_product", "flash", "fmha", "flex_attention", "triton_tem")),
    ("matrix products", ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "linear", "int8pack", "grouped_mm")),
    ("matrix products", ("gemm", "nvjet", "cutlass")),  # kernels of a GPU
    ("loss", ("log_softmax", "logsoftmax", "nll_loss", "cross_entropy")),
    ("optimiser", ("adam", "vector_norm", "_foreach")),
    ("compiled element-wise", ("cpp_fused", "triton_", "compiledfxgraph")),
)
"""What an operation's name contains, in small letters; the first that fits."""

ELSE = "element-wise and copies"


def time_by_kind(compute: Callable[[], object], device_type: str) -> dict[str, float]:
    """Share of one call's time that each kind of operation takes, most first."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or its library writes lines to stderr
    on_cuda = device_type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]) as seen:
        compute()
        if on_cuda:
            torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in seen.key_averages():
        name = event.key.lower()
        kind = next((label for label, parts in _KINDS if any(part in name for part in parts)), ELSE)
        found[kind] = found.get(kind, 0.0) + (event.self_device_time_total if on_cuda else event.self_cpu_time_total)
    total = sum(found.values())
    return {kind: found[kind] / total for kind in sorted(found, key=lambda kind: -found[kind])}
