"""Grouped matrix products: each group of consecutive rows is multiplied by its own matrix.

`torch.nn.functional.grouped_mm` does this for bfloat16 rows whose size is a multiple of 16 bytes. It does not support
float64 or other row sizes, and it cannot be compiled in float32. This module's operators therefore use torch's function
if possible, and otherwise loop over the groups. For a compiler, each operator is one opaque node. Otherwise the group
sizes, which depend on data, would break the graph. Registered formulas let FlopCounterMode count the FLOPs of the
operators.

A loop reads the group sizes on the host, so it waits for a GPU. With `ends_for`, all products of a layer, forward and
backward, read them once.

`gathered` brings rows into the order of the groups, and back.

Shapes: N rows sorted by group, E groups, D input features, O output features. `ends_E` (int32) holds the index at which
each group ends.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch.utils.flop_counter import register_flop_formula

_WITHOUT_GRAPHS = (torch.Tag.cudagraph_unsafe,)
"""Tag for operators that can read numbers on the host: the loop does, and torch's own on most GPUs. A CUDA graph is cut
around them."""


@library.custom_op("archlab::grouped_linear", mutates_args=(), tags=_WITHOUT_GRAPHS)
def grouped_linear(x_ND: Tensor, weight_EOD: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each row by the transposed matrix of its group, as F.linear does: [N, D] -> [N, O]."""
    if _uses_kernel(x_ND, weight_EOD, ends_E):
        return F.grouped_mm(x_ND, weight_EOD.mT, offs=ends_E)
    y_NO = x_ND.new_empty(len(x_ND), weight_EOD.shape[1])
    for e, rows in _groups(ends_E):
        torch.mm(x_ND[rows], weight_EOD[e].T, out=y_NO[rows])
    return y_NO


@library.custom_op("archlab::grouped_outer", mutates_args=(), tags=_WITHOUT_GRAPHS)
def grouped_outer(y_NO: Tensor, x_ND: Tensor, ends_E: Tensor) -> Tensor:
    """For each group, sum the outer products of its rows: [N, O] and [N, D] -> [E, O, D].

    This is the gradient of `grouped_linear` with respect to the weight.
    """
    if _uses_kernel(y_NO, x_ND, ends_E):
        # For a group without rows, the kernel of some GPUs leaves its output undefined (pytorch issue 172439).
        is_empty_E = ends_E.diff(prepend=ends_E.new_zeros(1)) == 0
        return F.grouped_mm(y_NO.T, x_ND, offs=ends_E).masked_fill_(is_empty_E[:, None, None], 0)
    weight_EOD = x_ND.new_zeros(len(ends_E), y_NO.shape[1], x_ND.shape[1])
    for e, rows in _groups(ends_E):
        torch.mm(y_NO[rows].T, x_ND[rows], out=weight_EOD[e])
    return weight_EOD


def _groups(ends_E: Tensor) -> Iterator[tuple[int, slice]]:
    start = 0
    for e, end in enumerate(ends_E.tolist()):
        if end > start:
            yield e, slice(start, end)
        start = end


def ends_for(ends_E: Tensor, x_ND: Tensor, weight_EOD: Tensor) -> Tensor:
    """Return `ends_E` on the device where the products read it: on the CPU if they loop over the groups, otherwise
    unchanged."""
    return ends_E if ends_E.is_meta or _fits_kernel(x_ND, weight_EOD) else ends_E.cpu()


def _uses_kernel(a: Tensor, b: Tensor, ends_E: Tensor) -> bool:
    return _fits_kernel(a, b) and ends_E.device == a.device


def _fits_kernel(*matrices: Tensor) -> bool:
    is_whole = all(size % 8 == 0 for m in matrices for size in m.shape[-1:] + m.shape[1:-1])
    in_order = all(m.is_contiguous() or m.mT.is_contiguous() for m in matrices)
    return is_whole and in_order and all(m.dtype == torch.bfloat16 for m in matrices)


@grouped_linear.register_fake
def _(x_ND: Tensor, weight_EOD: Tensor, ends_E: Tensor) -> Tensor:
    return x_ND.new_empty(len(x_ND), weight_EOD.shape[1])


@grouped_outer.register_fake
def _(y_NO: Tensor, x_ND: Tensor, ends_E: Tensor) -> Tensor:
    return x_ND.new_empty(len(ends_E), y_NO.shape[1], x_ND.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x_ND, weight_EOD, ends_E = ctx.saved_tensors
    wants_x, wants_weight, _ = ctx.needs_input_grad
    grad_NO = grad_NO.contiguous()
    return (
        grouped_linear(grad_NO, weight_EOD.mT, ends_E) if wants_x else None,
        grouped_outer(grad_NO, x_ND, ends_E) if wants_weight else None,
        None,
    )


grouped_linear.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.archlab.grouped_linear)
def _(x_ND: torch.Size, weight_EOD: torch.Size, ends_E: torch.Size, **_: Any) -> int:
    return 2 * x_ND[0] * weight_EOD[1] * weight_EOD[2]


@register_flop_formula(torch.ops.archlab.grouped_outer)
def _(y_NO: torch.Size, x_ND: torch.Size, ends_E: torch.Size, **_: Any) -> int:
    return 2 * x_ND[0] * x_ND[1] * y_NO[1]


def gathered(x_ND: Tensor, index_R: Tensor, places_NK: Tensor) -> Tensor:
    """Return the rows of x with these indices, [R, D].

    Each row of x is gathered K times. `places` holds its K indices in the result. The backward pass sums the gradients
    of a row in the order of `places`. On a GPU, index_select's own backward pass can sum in another order in each run.
    """
    return _Gathered.apply(x_ND, index_R, places_NK)  # pyright: ignore[reportReturnType]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, index_R: Tensor, places_NK: Tensor) -> Tensor:
        ctx.save_for_backward(places_NK)
        return x_ND.index_select(0, index_R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (places_NK,) = ctx.saved_tensors
        grad_NKD = gradients[0].index_select(0, places_NK.flatten()).unflatten(0, places_NK.shape)
        return grad_NKD.sum(1), None, None
