"""Attention by torch's flex_attention, which compiles a kernel for the scores and the mask. It skips masked tiles.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C width of queries and keys, V width of values.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.model.graphs import allow_forms, outside_graphs
from archlab.model.masks import Mask, causal_tiles, padded_length
from archlab.model.softmax import Softmax


@outside_graphs  # on a CPU, torch cannot compile a graph in which a mask is made
def flex(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Return flex_attention's output, compiled for each combination of shapes.

    After 64 combinations, torch uses its uncompiled implementation. On a GPU, the lengths are therefore padded to
    multiples of 128. No query sees the padding, and the outputs of added queries are dropped.
    """
    from torch.nn.attention.flex_attention import AuxRequest

    n_queries, n_keys = q_BHQC.shape[2], k_BKSC.shape[2]
    if mask_BQS is None:
        # A query does not see the keys that are added after it.
        blocks = causal_tiles(
            padded_length(n_queries, q_BHQC.device), padded_length(n_keys, q_BHQC.device), q_BHQC.device
        )
    else:
        blocks = mask_BQS.tiles
    more_queries, more_keys = (whole - n for whole, n in zip(blocks.seq_lengths, (n_queries, n_keys), strict=True))
    if more_queries or more_keys:
        q_BHQC, k_BKSC, v_BKSV = (
            F.pad(x, (0, 0, 0, more)) for x, more in ((q_BHQC, more_queries), (k_BKSC, more_keys), (v_BKSV, more_keys))
        )
        bias_BHQS = None if bias_BHQS is None else F.pad(bias_BHQS, (0, more_keys, 0, more_queries))

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if bias_BHQS is not None:
            s = s + bias_BHQS[b if len(bias_BHQS) > 1 else 0, h, q, k]
        return s if softmax.softcap is None else softmax.softcap * torch.tanh(s / softmax.softcap)

    grouped = q_BHQC.shape[1] != k_BKSC.shape[1]
    inputs = (q_BHQC, k_BKSC, v_BKSV, score, blocks, softmax.scale, grouped)
    if softmax.sinks_H is None:
        return _compiled_flex()(*inputs)[:, :, :n_queries]
    # A sink takes part of each softmax; the keys keep the fraction sum(exp s) / (sum(exp s) + exp(sink)).
    mixed_BHQV, aux = _compiled_flex()(*inputs, return_aux=AuxRequest(lse=True))
    share_BHQ = torch.sigmoid(aux.lse - softmax.sinks_H[:, None])
    return (mixed_BHQV * share_BHQ[..., None].to(mixed_BHQV.dtype))[:, :, :n_queries]


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    allow_forms()
    # With dynamic shapes, its CPU code cannot be compiled. As one operator, the compiled code can be timed.
    return torch.compile(flex_attention, dynamic=False, options={"wrap_inductor_compiled_regions": True})
