"""Arithmetic that components share: conversion to wider dtypes, autocast, and scaling."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available

WHOLE = (torch.int64, torch.int32)
"""Integer dtypes allowed for token ids, and for counts such as padding lengths."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or the given dtype if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert bfloat16 and float16 to float32; return float32 and float64 unchanged."""
    return x.to(wide(x.dtype))


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context manager that turns off autocast on the device of `like`.

    Matrix products inside the context keep the dtype of their inputs.
    """
    device = like.device.type
    return torch.autocast(device, enabled=False) if _is_autocast(device) else nullcontext()


def _is_autocast(device: str) -> bool:
    return is_autocast_available(device) and torch.is_autocast_enabled(device)


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to autocast's dtype if autocast is on; otherwise return them unchanged.

    If several matrix products share an input, torch converts the input in each product, and its gradient as well.
    Calling this function first reduces this to one conversion.
    """
    device = tensors[0].device.type
    if not _is_autocast(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)


def is_training_eagerly() -> bool:
    """Return whether gradients are enabled and the code is not being compiled."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def has_format_of(parameter: Tensor | None, x: Tensor) -> bool:
    """Return whether a parameter is None or has the dtype of `x`. Under autocast, the dtypes may differ."""
    return parameter is None or parameter.dtype is x.dtype


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return factor * x. If the factor is 1, return x without a copy."""
    return x if factor == 1 else x * factor


class Same(nn.Identity):
    """Identity module without the overhead of `nn.Module.__call__`. Hooks do not run.

    The overhead matters because a layer has about a dozen identity modules.
    """

    def __call__(self, input: Tensor) -> Tensor:
        return input
