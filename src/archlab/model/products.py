"""Plain causal attention of short sequences, as batched matrix products in the dtype of the queries.

Each block of queries is multiplied by all keys up to the end of the block. The attention weights are kept for the
backward pass. On a processor with fast bfloat16 products, this takes one to two thirds of the time of torch's fused
kernel, which runs in float32.

For a compiler, the operator is one opaque node. Compiled products would be slower, and compilation would take half a
minute. The operator is registered by hand, because `library.custom_op` would load the compiler at the first call.

Shapes: B batch, H query heads, K key/value heads, T queries and keys, C width of queries and keys, V width of values, X
= B * K. N is the number of queries in a block times the H / K heads that share a key. S keys up to the end of a block.
W is the number of all attention weights.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, library

from archlab.model.arithmetic import without_autocast
from archlab.model.torch_private import softmax_backward

BLOCK = 64
"""Number of queries in a block.

Larger blocks would compute more masked scores. Smaller blocks would make matrix products slower.
"""


library.define("archlab::causal_products", "(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)")
library.define(
    "archlab::causal_products_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor weights, float scale) -> (Tensor, Tensor, Tensor)",
)


def causal_products(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor, scale: float) -> Tensor:
    """Return the attention output, [B, H, T, V].

    Scores and attention weights are rounded to the dtype of q. The softmax is computed in at least float32.
    """
    return torch.ops.archlab.causal_products(q_BHTC, k_BKTC, v_BKTV, scale)[0].transpose(1, 2)


@library.impl("archlab::causal_products", "default")
def _forward(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the output, [B, T, H, V], and the attention weights."""
    mixed_BTHV, weights_W = _outputs(q_BHTC, k_BKTC, v_BKTV)
    k_XTC, v_XTV = k_BKTC.flatten(0, 1), v_BKTV.flatten(0, 1)
    with without_autocast(q_BHTC):
        for first, end, weights_XNS in _blocks(weights_W, q_BHTC, k_BKTC):
            n = end - first
            scores_XNS = _scaled_product(_of_block(q_BHTC, k_BKTC, first, end), k_XTC[:, :end].mT, scale)
            hidden_QQ = scores_XNS.new_full((n, n), float("-inf")).triu(1)
            scores_XNS.unflatten(1, (-1, n))[..., first:] += hidden_QQ
            torch.softmax(scores_XNS, -1, out=weights_XNS)
            mixed_BHQV = (weights_XNS @ v_XTV[:, :end]).view(*q_BHTC.shape[:2], n, -1)
            mixed_BTHV[:, first:end] = mixed_BHQV.transpose(1, 2)
    return mixed_BTHV, weights_W


@library.impl("archlab::causal_products_backward", "default")
def _gradients(
    grad_BTHV: Tensor, q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor, weights_W: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    k_XTC, v_XTV = k_BKTC.flatten(0, 1), v_BKTV.flatten(0, 1)
    grad_BHTV = grad_BTHV.transpose(1, 2)
    grad_q_BHTC = q_BHTC.new_empty(q_BHTC.shape)
    grad_k_XTC, grad_v_XTV = k_XTC.new_zeros(k_XTC.shape), v_XTV.new_zeros(v_XTV.shape)
    with without_autocast(q_BHTC):
        for first, end, weights_XNS in _blocks(weights_W, q_BHTC, k_BKTC):
            q_XNC, grad_XNV = (_of_block(x, k_BKTC, first, end) for x in (q_BHTC, grad_BHTV))
            grad_v_XTV[:, :end].baddbmm_(weights_XNS.mT, grad_XNV)
            grad_weights_XNS = grad_XNV @ v_XTV[:, :end].mT
            grad_scores_XNS = softmax_backward(grad_weights_XNS, weights_XNS)
            grad_q_XNC = _scaled_product(grad_scores_XNS, k_XTC[:, :end], scale)
            grad_q_BHTC[:, :, first:end] = grad_q_XNC.view(*q_BHTC.shape[:2], end - first, -1)
            grad_k_XTC[:, :end].baddbmm_(grad_scores_XNS.mT, q_XNC, alpha=scale)
    return grad_q_BHTC, grad_k_XTC.view(k_BKTC.shape), grad_v_XTV.view(v_BKTV.shape)


def _outputs(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the output and the attention weights of the forward pass.

    The output has the axis order [B, T, H, V], in which the output projection reads it.
    """
    B, H, T, _ = q_BHTC.shape
    n_weights = sum(B * H * (end - first) * end for first, end in _bounds(T))
    return q_BHTC.new_empty(B, T, H, v_BKTV.shape[-1]), q_BHTC.new_empty(n_weights)


def _bounds(length: int) -> Iterator[tuple[int, int]]:
    for first in range(0, length, BLOCK):
        yield first, min(first + BLOCK, length)


def _blocks(weights_W: Tensor, q_BHTC: Tensor, k_BKTC: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    B, H, T, _ = q_BHTC.shape
    bounds = list(_bounds(T))
    of_blocks = weights_W.split([B * H * (end - first) * end for first, end in bounds])
    for (first, end), weights in zip(bounds, of_blocks, strict=True):
        yield first, end, weights.view(B * k_BKTC.shape[1], -1, end)


def _of_block(x_BHTC: Tensor, k_BKTC: Tensor, first: int, end: int) -> Tensor:
    """Return the rows of one block of queries, [X, N, C]."""
    return x_BHTC[:, :, first:end].unflatten(1, (k_BKTC.shape[1], -1)).flatten(2, 3).flatten(0, 1)


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale * (a @ b). The scale is applied before the result is rounded."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)


@library.register_fake("archlab::causal_products")
def _(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return _outputs(q_BHTC, k_BKTC, v_BKTV)


@library.register_fake("archlab::causal_products_backward")
def _(
    grad_BTHV: Tensor, q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor, weights_W: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q_BHTC.new_empty(q_BHTC.shape), k_BKTC.new_empty(k_BKTC.shape), v_BKTV.new_empty(v_BKTV.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, grad_BTHV: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return *torch.ops.archlab.causal_products_backward(grad_BTHV, *ctx.saved_tensors, ctx.scale), None


library.register_autograd("archlab::causal_products", _backward, setup_context=_keep)
