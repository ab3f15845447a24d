"""Where a computation's time goes, by kind of operation."""

import os
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

_KINDS = (
    ("attention", ("scaled_dot_product", "flash", "fmha", "flex_attention")),
    ("matrix products", ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "linear", "int8pack", "grouped_mm")),
    ("loss", ("softmax", "nll_loss", "cross_entropy")),
    ("optimiser", ("adamw", "vector_norm", "_foreach")),
    ("compiled element-wise", ("cpp_fused", "triton_", "CompiledFxGraph")),
)
"""What an operation's name contains; the first that fits."""

ELSE = "element-wise and copies"


def seconds_by_kind(compute: Callable[[], object], device_type: str) -> dict[str, float]:
    """Seconds that each kind of operation takes in one call, most first."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or its library writes lines to stderr
    on_cuda = device_type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]) as seen:
        compute()
        if on_cuda:
            torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in seen.key_averages():
        kind = next((label for label, parts in _KINDS if any(part in event.key for part in parts)), ELSE)
        microseconds = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        found[kind] = found.get(kind, 0.0) + microseconds / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Of the total."""
    total = sum(seconds.values())
    return {kind: s / total for kind, s in seconds.items()}
