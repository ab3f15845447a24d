"""Attention by torch's flex_attention, which compiles a kernel for the scores and the mask. It skips masked tiles.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C width of queries and keys, V width of values.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.model.graphs import allow_forms, outside_graphs
from archlab.model.masks import Mask, all_tiles, causal_tiles, hides_nothing, padded_length, row_of
from archlab.model.softmax import Softmax
from archlab.model.state import is_compiled_step

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def flex(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Return flex_attention's output, compiled for each combination of shapes.

    In a compiled decoding step, flex_attention is a part of the step's graph. Other graphs call a function that is
    compiled separately.
    """
    attend = _in_step if is_compiled_step(q_BHQC.shape[2]) else _in_tiles
    return attend(q_BHQC, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax)


def _in_step(
    q_BH1C: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_B1S: Mask | None, bias_BH1S: Tensor | None, softmax: Softmax
) -> Tensor:
    """Return the output for a single query. The mask is a part of the scores, because it changes in each step.

    torch divides the tiles of keys of each head among the processors of a GPU. Without tiles, one processor would read
    all keys.
    """
    from torch.nn.attention.flex_attention import flex_attention

    seen_B1S = None if mask_B1S is None or hides_nothing(mask_B1S) else mask_B1S.dense
    tiles = (all_tiles if mask_B1S is None else mask_B1S.all_tiles)(k_BKSC.shape[2], k_BKSC.device)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        s = _score(s, b, h, q, k, bias_BH1S, softmax)
        return s if seen_B1S is None else torch.where(seen_B1S[row_of(seen_B1S, b), q, k], s, float("-inf"))

    return _attended(flex_attention, q_BH1C, k_BKSC, v_BKSV, score, tiles, softmax)


@outside_graphs  # on a CPU, torch cannot compile a graph in which a mask is made
def _in_tiles(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Return the output of a compiled function.

    After 64 combinations of shapes, torch uses its uncompiled implementation. On a GPU, the lengths are therefore
    padded to multiples of 128. No query sees the padding, and the outputs of added queries are dropped.
    """
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
        return _score(s, b, h, q, k, bias_BHQS, softmax)

    return _attended(_compiled_flex(), q_BHQC, k_BKSC, v_BKSV, score, blocks, softmax)[:, :, :n_queries]


def _score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, bias_BHQS: Tensor | None, softmax: Softmax) -> Tensor:
    """Return the score of a query and a key with the bias and the soft cap."""
    if bias_BHQS is not None:
        s = s + bias_BHQS[row_of(bias_BHQS, b), h, q, k]
    return s if softmax.softcap is None else softmax.softcap * torch.tanh(s / softmax.softcap)


def _attended(
    attend: Callable[..., Any], q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, score: Callable[..., Tensor],
    blocks: "BlockMask", softmax: Softmax,
) -> Tensor:  # fmt: skip
    """Return the output, [B, H, Q, V], of torch's flex_attention or of its compiled form."""
    from torch.nn.attention.flex_attention import AuxRequest

    grouped = q_BHQC.shape[1] != k_BKSC.shape[1]
    inputs = (q_BHQC, k_BKSC, v_BKSV, score, blocks, softmax.scale, grouped)
    if softmax.sinks_H is None:
        return attend(*inputs)
    # A sink takes part of each softmax; the keys keep the fraction sum(exp s) / (sum(exp s) + exp(sink)).
    mixed_BHQV, aux = attend(*inputs, return_aux=AuxRequest(lse=True))
    share_BHQ = torch.sigmoid(aux.lse - softmax.sinks_H[:, None])
    return mixed_BHQV * share_BHQ[..., None].to(mixed_BHQV.dtype)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    allow_forms()
    # With dynamic shapes, its CPU code cannot be compiled. As one operator, the compiled code can be timed.
    return torch.compile(flex_attention, dynamic=False, options={"wrap_inductor_compiled_regions": True})
