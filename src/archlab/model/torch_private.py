"""All uses of torch's private functions and classes, each with its reason. Tested with torch 2.13.

If a torch release moves one of them, only this file breaks (`tests/unit/test_layout.py`).
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils import _python_dispatch

P = ParamSpec("P")
R = TypeVar("R")

DispatchMode = _python_dispatch.TorchDispatchMode
"""Base class of context managers that see all torch operations.

The only public alternative, the profiler, hides the values of tensors.
"""


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of the scores, given the gradient of their softmax over the last axis.

    All tensors have the same shape. The same result needs three public operations, which write a whole tensor three
    times instead of once.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, -1, grad.dtype)


def layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return LayerNorm's gradients of x, [..., D], and of the weight, [D].

    `mean` and `inverse`, [..., 1], are the mean and the inverse standard deviation that the forward pass used. The
    public function, `F.layer_norm`, always computes both from x.
    """
    mask = [True, weight is not None, False]
    shape = x.shape[-1:]
    grads = torch.ops.aten.native_layer_norm_backward(grad, x, shape, mean, inverse, weight, None, mask)
    return grads[0], grads[1]


def int8_product(x_MK: Tensor, weight_NK: Tensor, scale_N: Tensor) -> Tensor:
    """Return the product, [M, N], of bfloat16 rows and an int8 matrix with one scale per row.

    This function runs only on CPUs. torch has no public function for this product.
    """
    return torch.ops.aten._weight_int8pack_mm(x_MK, weight_NK, scale_N)


EXCHANGE_LOGGER = "torch.distributed.tensor._collective_utils"
"""Name of the logger with which torch warns that gloo gathers a whole tensor where NCCL exchanges parts of it."""


def kept_out_of_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from graphs as `torch.compiler.disable` does, without loading the compiler."""
    return torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage, reportReturnType]


def has_compiler() -> bool:
    """Return whether torch finds a C++ compiler to build its code. Triton needs a compiler for its launchers, too."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return False
    return True


def set_recompile_limit(forms: int) -> None:
    """Let torch compile up to `forms` versions of each function, in this process.

    A new shape or a new kind of argument needs a new version.
    """
    torch._dynamo.config.recompile_limit = forms  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


def skip_size_checks() -> None:
    """Turn off size checks in compiled code, in this process. torch's guards have already checked the shapes."""
    from torch._inductor import config

    config.size_asserts = False


def keep_address(x: Tensor) -> None:
    """Promise that compiled code may read and write a tensor at its present address.

    A CUDA graph then uses the tensor itself instead of a copy. Without this promise, torch makes no CUDA graph of code
    that writes to its arguments. If a later call has another tensor, the graph is recorded again.
    """
    torch._dynamo.mark_static_address(x, guard=False)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


def exchange_rows(x: Tensor, received: list[int], sent: list[int], group: "torch.distributed.ProcessGroup") -> Tensor:
    """Send `sent[i]` rows to process i of the group and return the rows received from each process.

    The function is differentiable. `received[i]` is the number of rows from process i. The public function,
    `torch.distributed.nn.functional.all_to_all_single`, needs an output tensor that the caller has allocated.
    """
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    return all_to_all_single_autograd(x, received, sent, group)


def backward_node() -> Any:
    """Return the autograd node whose backward function is running. Outside a backward pass, return None."""
    return torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue]
