"""Every use of a private part of torch, each with its reason; tried with torch 2.13.

A torch release that moves one of them breaks this file and no other (`tests/unit/test_layout.py`).
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils import _python_dispatch

P = ParamSpec("P")
R = TypeVar("R")

DispatchMode = _python_dispatch.TorchDispatchMode
"""Base class of what sees every operation that torch runs. The only public way to the same, the profiler, gives no
values to look at."""


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Gradient of the scores, of the gradient of softmax's weights over the last axis; both of one shape.

    Three public operations give the same, but write the whole tensor twice more.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, -1, grad.dtype)


def int8_product(x_MK: Tensor, weight_NK: Tensor, scale_N: Tensor) -> Tensor:
    """Product [M, N] of bfloat16 rows with an int8 matrix whose rows have scales. CPU only; there is no public one."""
    return torch.ops.aten._weight_int8pack_mm(x_MK, weight_NK, scale_N)


def kept_out_of_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as `torch.compiler.disable` does, without loading the compiler before the first call."""
    return torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage, reportReturnType]


def has_compiler() -> bool:
    """Whether torch finds the C++ compiler that it builds its code with; Triton builds its launchers by one, too."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return False
    return True


def set_recompile_limit(forms: int) -> None:
    """Let torch compile a function for that many shapes or kinds of arguments, in this process."""
    torch._dynamo.config.recompile_limit = forms  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


def skip_size_checks() -> None:
    """Let compiled code not check again the shapes of its inputs, which its guards have checked, in this process."""
    from torch._inductor import config

    config.size_asserts = False


def exchange_rows(x: Tensor, received: list[int], sent: list[int], group: "torch.distributed.ProcessGroup") -> Tensor:
    """Rows of every process of the group, `received` of each, for `sent` to each; with a gradient.

    The public `torch.distributed.nn.functional.all_to_all_single` writes into a tensor that its caller allocates.
    """
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    return all_to_all_single_autograd(x, received, sent, group)


def backward_node() -> Any:
    """The node of the graph whose backward pass is running, or None outside a backward pass."""
    return torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue]
