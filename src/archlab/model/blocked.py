"""Attention in blocks of queries.

Each block reads only the keys that its queries can see. With a sliding window, time and memory therefore grow linearly
with the sequence length. Blocks of the same size are stacked on the batch axis and share one mask tensor. Their keys
are overlapping views. Packed documents are processed one after another.

Shapes: B batch, H query heads, K key/value heads, T tokens, C width of queries and keys, V width of values, N blocks, Q
queries of a block, S keys of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from archlab.config.components.query_blocks import QueryBlocks
from archlab.model.masks import Stretch, TensorMask
from archlab.model.softmax import Softmax

Inner = Callable[[Tensor, Tensor, Tensor, TensorMask | None, None, Softmax], Tensor]
"""Kernel that computes the attention of stacked blocks."""


def in_stretches(
    q_BHTC: Tensor, k_BKTC: Tensor, v_BKTV: Tensor, stretches: Sequence[Stretch], softmax: Softmax, inner: Inner
) -> Tensor:
    """Return the attention output, [B, H, T, V], for rows that consist of one sequence each."""
    B = len(q_BHTC)
    if softmax.sinks_H is not None:
        softmax = replace(softmax, sinks_H=softmax.sinks_H.repeat(B))
    queries = q_BHTC.split([s.blocks.count * s.blocks.size for s in stretches], 2)
    keys, values = (_keys(x, stretches) for x in (k_BKTC, v_BKTV))
    mixed = [
        _apart(inner(_side_by_side(q, s.blocks.count), k, v, s.mask, None, softmax), B)
        for q, k, v, s in zip(queries, keys, values, stretches, strict=True)
    ]
    return torch.cat(mixed, 1).transpose(1, 2)


def in_documents(
    q_BHTC: Tensor,
    k_BKTC: Tensor,
    v_BKTV: Tensor,
    documents: Sequence[tuple[int, Sequence[Stretch]]],
    softmax: Softmax,
    inner: Inner,
) -> Tensor:
    """Return the attention output, [B, H, T, V], for rows that consist of several documents.

    The batch is cut into pieces of one or several documents, which do not see each other. `documents` holds the length
    and the blocks of each piece.
    """
    lengths = [length for length, _ in documents]
    pieces = (x.transpose(0, 1).flatten(1, 2)[None].split(lengths, 2) for x in (q_BHTC, k_BKTC, v_BKTV))
    mixed = [
        in_stretches(q, k, v, stretches, softmax, inner).transpose(1, 2)
        for q, k, v, (_, stretches) in zip(*pieces, documents, strict=True)
    ]
    return torch.cat(mixed, 1)[0].unflatten(0, (len(q_BHTC), -1)).transpose(1, 2)


def _side_by_side(q_BHTC: Tensor, n: int) -> Tensor:
    """Move blocks to a new first axis: [B, H, N * Q, C] -> [N, B * H, Q, C]."""
    return q_BHTC.unflatten(2, (n, -1)).movedim(2, 0).flatten(1, 2)


def _apart(mixed: Tensor, n_rows: int) -> Tensor:
    """Invert `_side_by_side` and put heads after tokens: [N, B * H, Q, V] -> [B, N * Q, H, V]."""
    return mixed.unflatten(1, (n_rows, -1)).permute(1, 0, 3, 2, 4).flatten(1, 2)


def _keys(x_BKTC: Tensor, stretches: Sequence[Stretch]) -> list[Tensor]:
    """Return the keys of each stretch, [N, B * K, S, C].

    The keys that all blocks of a stretch share come first, followed by each block's own keys.
    """
    if len(x_BKTC) > 1:
        x_BKTC = x_BKTC.contiguous()  # so that views can merge the axes of rows and heads
    own = zip(_Own.apply(x_BKTC, [s.blocks for s in stretches]), stretches, strict=True)
    return [keys if s.shared is None else _with_shared(x_BKTC, s.shared, keys) for keys, s in own]


def _with_shared(x_BKTC: Tensor, shared: Tensor, own_NXSC: Tensor) -> Tensor:
    shared_1XSC = x_BKTC[:, :, shared].flatten(0, 1)[None]
    return torch.cat((shared_1XSC.expand(len(own_NXSC), -1, -1, -1), own_NXSC), 2)


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(x_BKTC: Tensor, stretches: list[QueryBlocks]) -> tuple[Tensor, ...]:
        return tuple(_view(x_BKTC, blocks, 0, blocks.n_keys).flatten(1, 2) for blocks in stretches)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, list[QueryBlocks]], output: tuple[Tensor, ...]) -> None:
        x_BKTC, ctx.stretches = inputs
        ctx.shape = x_BKTC.shape

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total_BKTC = gradients[0].new_zeros(ctx.shape)
        for gradient, blocks in zip(gradients, ctx.stretches, strict=True):
            gradient_NBKSC = gradient.unflatten(1, ctx.shape[:2])
            # Add at most `size` keys at a time (the number of queries in a block), so that blocks do not overlap.
            for first in range(0, blocks.n_keys, blocks.size):
                n = min(blocks.size, blocks.n_keys - first)
                _view(total_BKTC, blocks, first, n).add_(gradient_NBKSC.narrow(3, first, n))
        return total_BKTC, None


def _view(x_BKTC: Tensor, blocks: QueryBlocks, first: int, n_keys: int) -> Tensor:
    """Return `n_keys` keys of each block, [N, B, K, S, C].

    They start `first` positions after the first key that the block reads.
    """
    reach = (blocks.count - 1) * blocks.size + n_keys
    reached = x_BKTC.narrow(2, blocks.first_key + first, reach)
    return reached.unfold(2, n_keys, blocks.size).permute(2, 0, 1, 4, 3)
