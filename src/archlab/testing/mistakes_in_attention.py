"""Known mistakes in hand-written attention.

Shapes: B batch, T queries, S keys, H query heads, K key/value heads, C head_dim, V v_dim.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlab.model.attention import MultiHeadAttention
from archlab.model.masks import dense
from archlab.testing.planting import Mistake, Plant, add_input, in_attention, swap
from archlab.testing.reference import Reference

Weighing = Callable[[Tensor, Tensor], Tensor]
"""Function of scores [B, H, T, S] and a mask [B or 1, 1, T, S] that returns the weights of attention."""


def softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Return the right weights: a softmax over the visible keys."""
    return scores.masked_fill(~seen, float("-inf")).softmax(-1)


def attending(
    weigh: Weighing = softmax,
    scale: Callable[[MultiHeadAttention], float] | None = None,
    repeat: Callable[[Tensor, int], Tensor] = lambda x, group: x.repeat_interleave(group, 1),
    merge: Callable[[Tensor], Tensor] = lambda mixed: mixed,
    *,
    swaps: bool = False,
) -> Plant:
    """Return a plant that changes multi-head attention between the projections.

    `repeat` copies the keys and values for the query heads of a group, and `merge` changes the output [B, H, T, V].
    """

    def attend(
        attention: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Tensor | None, **_: Any
    ) -> Tensor:
        group = attention.config.n_heads // attention.config.n_kv_heads
        k, v = repeat(k, group), repeat(v, group)
        q, k = (k, q) if swaps else (q, k)
        scores = q @ k.transpose(-1, -2) * (attention.attend.scale if scale is None else scale(attention))
        scores = scores if bias is None else scores + bias
        seen = dense(mask)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()[None] if seen is None else seen
        return merge(weigh(scores, seen[:, None]) @ v)

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            if attention.sinks is None and attention.config.softcap is None:
                attention.__dict__["attend"] = _keeping_scale(attention, attend)

    return plant


def _keeping_scale(attention: MultiHeadAttention, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    replaced = partial(attend, attention)
    replaced.__dict__["scale"] = attention.attend.scale
    return replaced


def splitting(split: Callable[[Tensor, int], Tensor], merge: Callable[[Tensor], Tensor] | None = None) -> Plant:
    """Return a plant that splits [B, T, H * C] into heads [B, H, T, C] of a width in another way. `merge` changes the
    output [B, H, T, V]."""

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            attention.__dict__["_split"] = split
        if merge is not None:
            attending(merge=merge)(reference)

    return plant


def without_moving_axes(x: Tensor, width: int) -> Tensor:
    return x.reshape(x.shape[0], -1, x.shape[1], width)


def heads_last(x: Tensor, width: int) -> Tensor:
    return x.unflatten(-1, (width, -1)).movedim(-1, 1)


def merged_heads_last(mixed: Tensor) -> Tensor:
    """Return the tensor [B, H, T, V] that attention merges into [B, T, V * H]."""
    return mixed.permute(0, 2, 3, 1).flatten(2).unflatten(-1, (mixed.shape[1], -1)).transpose(1, 2)


def reshaped_back(mixed: Tensor) -> Tensor:
    """Return the tensor [B, H, T, V] that attention merges into `mixed.reshape(B, T, H * V)`."""
    B, H, T, V = mixed.shape
    return mixed.reshape(B, T, H, V).transpose(1, 2)


def drop_output(attention: MultiHeadAttention) -> None:
    """Replace the output projection by the identity."""
    attention.out = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]


Hiding = Callable[[Tensor, Tensor], Tensor]
"""Function of scores [B, H, T, S] and a mask of the hidden keys that returns the weights of attention."""

_HIDINGS: Sequence[Hiding] = (
    lambda scores, hidden: scores.masked_fill(hidden, float("-inf")).softmax(-1),
    lambda scores, hidden: scores.masked_fill(hidden, -1e9).softmax(-1),
    lambda scores, hidden: scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num(),
)
"""Common ways to hide keys. They differ if a query sees no key at all: NaN, equal weights or zeros."""


def _diagonal(by: int) -> list[Plant]:
    """Return plants whose queries see the keys up to their own position plus `by`."""

    def weigh(hide: Hiding) -> Weighing:
        return lambda scores, _: hide(scores, ~torch.ones_like(scores).tril(by).bool())

    return [attending(weigh(hide)) for hide in _HIDINGS]


def _over_axis(axis: int) -> Weighing:
    return lambda scores, seen: scores.masked_fill(~seen, float("-inf")).softmax(axis)


ATTENTION = (
    Mistake(
        "no-scale",
        "Attention does not scale its scores; they should be divided by the square root of head_dim.",
        [attending(scale=lambda attention: 1.0)],
    ),
    Mistake(
        "scale-without-root",
        "Attention divides its scores by head_dim; it should divide by the square root of head_dim.",
        [attending(scale=lambda attention: 1 / attention.config.head_dim)],
    ),
    Mistake(
        "scale-of-all-heads",
        "Attention divides its scores by the square root of the width of all heads; it should take that of one head.",
        [attending(scale=lambda attention: (attention.config.n_heads * attention.config.head_dim) ** -0.5)],
    ),
    Mistake(
        "scale-multiplied",
        "Attention multiplies its scores by the square root of head_dim; it should divide by it.",
        [attending(scale=lambda attention: attention.config.head_dim**0.5)],
    ),
    Mistake(
        "mask-hides-own",
        "The causal mask is off by one: a query does not see its own key.",
        _diagonal(-1),
    ),
    Mistake("mask-shows-next", "The causal mask is off by one: a query sees the next key.", _diagonal(1)),
    Mistake(
        "no-mask",
        "Attention has no causal mask: a query sees later keys.",
        [attending(lambda scores, _: scores.softmax(-1))],
    ),
    Mistake(
        "mask-inverted",
        "The mask is inverted: it hides the keys that a query should see.",
        [attending(hide) for hide in _HIDINGS],
    ),
    Mistake(
        "mask-transposed",
        "The causal mask is transposed: a query sees its own key and later ones; it should see earlier ones.",
        [
            attending(lambda scores, _, hide=hide: hide(scores, torch.ones_like(scores).tril(-1).bool()))
            for hide in _HIDINGS
        ],
    ),
    Mistake(
        "mask-zero",
        "Hidden scores are set to 0; they should be -inf before the softmax.",
        [attending(lambda scores, seen: scores.masked_fill(~seen, 0.0).softmax(-1))],
    ),
    Mistake(
        "mask-after-softmax",
        "The mask follows the softmax, so the weights do not sum to 1; it should come before the softmax.",
        [attending(lambda scores, seen: scores.softmax(-1).masked_fill(~seen, 0.0))],
    ),
    Mistake(
        "causal-though-two-sided",
        "Attention is causal, but in the config every token sees all tokens.",
        [*_diagonal(0)],
    ),
    Mistake(
        "softmax-axis",
        "The softmax runs over another axis; it should run over the keys.",
        [attending(_over_axis(-2)), attending(_over_axis(1))],
    ),
    Mistake(
        "kv-heads-tiled",
        "Query heads read the wrong key/value heads: with 2 for 4 query heads, the order should be 0, 0, 1, 1 and not "
        "0, 1, 0, 1 (repeat_interleave, not repeat).",
        [attending(repeat=lambda x, group: x.repeat(1, group, 1, 1))],
    ),
    Mistake("queries-and-keys-swapped", "Queries and keys are swapped.", [attending(swaps=True)]),
    Mistake(
        "keys-and-values-swapped",
        "The projections of keys and values are swapped.",
        [in_attention(lambda attention: swap(attention, "k", "v"))],
    ),
    Mistake(
        "no-output-projection",
        "Attention leaves out its output projection.",
        [in_attention(drop_output)],
    ),
    Mistake(
        "heads-merged-without-transpose",
        "The heads are merged without a transpose: [B, H, T, C] is reshaped to [B, T, H C] at once.",
        [attending(merge=reshaped_back)],
    ),
    Mistake(
        "heads-split-without-transpose",
        "The heads are split without a transpose: [B, T, H C] is reshaped to [B, H, T, C] at once.",
        [
            splitting(without_moving_axes),
            splitting(without_moving_axes, reshaped_back),
        ],
    ),
    Mistake(
        "heads-last",
        "The heads are split as (C, H), so that a head takes every H-th feature; they should be split as (H, C).",
        [
            splitting(heads_last),
            splitting(heads_last, merged_heads_last),
        ],
    ),
    Mistake(
        "attention-adds-input",
        "Attention adds its input to its output; the layer adds the stream.",
        [in_attention(add_input)],
    ),
)
