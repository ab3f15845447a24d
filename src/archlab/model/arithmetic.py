"""Arithmetic that the parts share: formats wide enough for sums and angles, and factors that are often 1."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available

WHOLE = (torch.int64, torch.int32)
"""Formats of tokens, and of numbers of them."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or what is wider."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Tensor) -> Tensor:
    """bfloat16 and float16 widened; float32 and float64 as they are."""
    return x.to(wide(x.dtype))


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Products in the formats that they are given in, on the device of that tensor."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if _is_autocast(device) else nullcontext()


def _is_autocast(device: str) -> bool:
    return is_autocast_available(device) and torch.is_autocast_enabled(device)


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the format of autocast where it is on, as torch's own products do by themselves; else as they are.

    What several products read is converted once by it: torch would convert it for each, and each one's gradient back.
    """
    device = tensors[0].device.type
    if not _is_autocast(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)


def is_training_eagerly() -> bool:
    """Whether autograd records what is computed, op by op: a compiler fuses what is written out, autograd does not."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def has_format_of(parameter: Tensor | None, x: Tensor) -> bool:
    """Whether there is no parameter, or one of the format of the activations; under autocast it may have another."""
    return parameter is None or parameter.dtype is x.dtype


def scaled(x: Tensor, factor: float) -> Tensor:
    """factor * x; by 1, nothing is copied."""
    return x if factor == 1 else x * factor


class Same(nn.Identity):
    """What it is given, without torch's machinery around a module: layers have a dozen empty places. Hooks on it are
    not called."""

    def __call__(self, input: Tensor) -> Tensor:
        """The same."""
        return input
