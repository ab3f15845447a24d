"""Known mistakes in hand-written attention and rotary position embeddings."""

from collections.abc import Sequence

import torch

from archlab.testing import planting, planting_rotary
from archlab.testing.planting import Mistake, Plant, Weighing, attending, in_attention
from archlab.testing.planting_rotary import rotated, turned

ROTARY = (
    Mistake(
        "rope-pairing",
        "RoPE pairs other dimensions than the config: halves (i with i + d/2) in place of interleaved neighbors "
        "(2i with 2i + 1), or the other way round.",
        [rotated(lambda rope: {"pairing": "half" if rope.pairing == "interleaved" else "interleaved"})],
    ),
    Mistake(
        "rope-layouts",
        "RoPE mixes two layouts: its angles are for interleaved pairs and its partners for halves, or the other way "
        "round.",
        [turned(planting_rotary.of_two_layouts)],
    ),
    Mistake(
        "rope-output-order",
        "RoPE rotates the right pairs, but puts the results in the order of the other layout: halves in place of "
        "interleaved pairs, or the other way round.",
        [turned(lambda context, rope, width: planting_rotary.Reordered(context))],
    ),
    Mistake("rope-cos-sin", "RoPE exchanges cosine and sine.", [turned(planting_rotary.with_cos_for_sin)]),
    Mistake("rope-direction", "RoPE rotates in the opposite direction.", [rotated(positions=torch.neg)]),
    Mistake(
        "rope-sign",
        "RoPE lacks a minus sign: a pair (x, y) becomes (x cos - y sin, y cos + x sin).",
        [turned(planting_rotary.without_signs)],
    ),
    Mistake(
        "rope-first-position", "RoPE counts positions from 1; they begin at 0.", [rotated(positions=lambda p: p + 1)]
    ),
    Mistake(
        "rope-exponent",
        "RoPE's exponent is wrong by a factor of 2: pair i of d dimensions turns by position * theta^(-2i/d).",
        [rotated(lambda rope: {"theta": rope.theta**0.5}), rotated(lambda rope: {"theta": rope.theta**2})],
    ),
    Mistake(
        "rope-exponent-sign",
        "RoPE's exponent has the wrong sign: pair i of d dimensions turns by position * theta^(-2i/d).",
        [rotated(lambda rope: {"theta": 1 / rope.theta})],
    ),
    Mistake(
        "rope-exponent-shift",
        "RoPE's exponents are shifted or stretched: pair i of d dimensions turns by position * theta^(-2i/d), and i "
        "goes from 0 to d/2 - 1.",
        [
            turned(planting_rotary.with_frequencies(lambda pairs, n: (pairs + 1) / n)),
            turned(planting_rotary.with_frequencies(lambda pairs, n: pairs / (n - 1))),
        ],
    ),
    Mistake(
        "rope-theta",
        "RoPE has another theta than the config.",
        [rotated(lambda rope, theta=theta: {"theta": theta}) for theta in (1e4, 1e5, 5e5, 1e6)],
    ),
    Mistake("rope-missing", "RoPE is missing: nothing is rotated.", [rotated(positions=torch.zeros_like)]),
    Mistake(
        "rope-keys",
        "RoPE rotates only the queries; it should rotate the keys, too.",
        [turned(lambda context, rope, width: planting_rotary.OnlyQueries(context))],
    ),
    Mistake(
        "rope-values",
        "RoPE rotates the values, too; it should rotate only queries and keys.",
        [in_attention(planting_rotary.rotate_values)],
    ),
    Mistake(
        "rope-before-split",
        "RoPE rotates all heads of a token as one vector; it should rotate each head, after the heads are split.",
        [planting_rotary.rotated_before_split],
    ),
)

_MASKED: Sequence[Weighing] = (
    lambda scores, hidden: scores.masked_fill(hidden, float("-inf")).softmax(-1),
    lambda scores, hidden: scores.masked_fill(hidden, -1e9).softmax(-1),
    lambda scores, hidden: scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num(),
)
"""Weights from scores and hidden keys. They differ if a query sees no key at all: NaN, equal weights or zeros."""


def _diagonal(by: int) -> list[Plant]:
    """Return plants whose queries see the keys up to their own position plus `by`."""

    def weigh(masked: Weighing) -> Weighing:
        return lambda scores, _: masked(scores, ~torch.ones_like(scores).tril(by).bool())

    return [attending(weigh(masked)) for masked in _MASKED]


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
        [attending(masked) for masked in _MASKED],
    ),
    Mistake(
        "mask-transposed",
        "The causal mask is transposed: a query sees its own key and later ones; it should see earlier ones.",
        [
            attending(lambda scores, _, masked=masked: masked(scores, torch.ones_like(scores).tril(-1).bool()))
            for masked in _MASKED
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
        [in_attention(lambda attention: planting.swap(attention, "k", "v"))],
    ),
    Mistake(
        "no-output-projection",
        "Attention leaves out its output projection.",
        [in_attention(planting.drop_output)],
    ),
    Mistake(
        "heads-merged-without-transpose",
        "The heads are merged without a transpose: [B, H, T, C] is reshaped to [B, T, H C] at once.",
        [attending(merge=planting.reshaped_back)],
    ),
    Mistake(
        "heads-split-without-transpose",
        "The heads are split without a transpose: [B, T, H C] is reshaped to [B, H, T, C] at once.",
        [
            planting.splitting(planting.without_moving_axes),
            planting.splitting(planting.without_moving_axes, planting.reshaped_back),
        ],
    ),
    Mistake(
        "heads-last",
        "The heads are split as (C, H), so that a head takes every H-th feature; they should be split as (H, C).",
        [
            planting.splitting(planting.heads_last),
            planting.splitting(planting.heads_last, planting.merged_heads_last),
        ],
    ),
    Mistake(
        "attention-adds-input",
        "Attention adds its input to its output; the layer adds the stream.",
        [in_attention(planting.add_input)],
    ),
)
