"""Known mistakes in hand-written models, each as a change of archlab's reference."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from archlab.model.norms import LayerNorm, RMSNorm
from archlab.testing import planting, planting_rotary
from archlab.testing.planting import (
    Divisor,
    Plant,
    Weighing,
    activated,
    attending,
    gated,
    in_attention,
    in_layers,
    in_mlps,
    in_model,
    in_norms,
    norms_moved,
    without_residual,
)
from archlab.testing.planting_rotary import rotated, turned


class Mistake(NamedTuple):
    """A known mistake."""

    name: str
    words: str
    """Sentence that says what the code does, and what it should do."""
    plants: Sequence[Plant]
    """Changes of archlab's reference that make this mistake. They differ in details, such as the number that replaces
    -inf."""


def _deviation(x: Tensor, eps: float) -> Tensor:
    """Return the root of the sum of squares over D - 1 plus eps, [..., T, 1], for an input without its mean."""
    return (x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps).sqrt()


def _over(*axes: int) -> Divisor:
    return lambda x, eps: (x.square().mean(axes, keepdim=True) + eps).sqrt()


def _with_eps(eps: float) -> Divisor:
    return lambda x, _: planting.root(x, eps)


def _of_norms(kind: type[RMSNorm] | type[LayerNorm], title: str, averaged: str) -> tuple[Mistake, ...]:
    """Return the mistakes that RMSNorm and LayerNorm have in common."""

    def wrong(suffix: str, words: str, *divisors: Divisor) -> Mistake:
        plants = [in_norms(kind, divisor=divisor) for divisor in divisors]
        return Mistake(f"{title.lower()}-{suffix}", f"{title} {words}.", plants)

    return (
        wrong(
            "sum",
            "takes the sum of the squares; it should take their mean",
            lambda x, eps: (x.square().sum(-1, keepdim=True) + eps).sqrt(),
        ),
        wrong(
            "eps-outside",
            f"adds eps to the root; it should add eps to the {averaged}, before the root",
            lambda x, eps: x.square().mean(-1, keepdim=True).sqrt() + eps,
        ),
        wrong("no-eps", "leaves out eps", _with_eps(0.0)),
        wrong("eps-size", "has another eps than the config", *map(_with_eps, (1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12))),
        wrong(
            "axis",
            "averages over another axis; it should average over the features of each token",
            _over(-2),
            _over(-2, -1),
            _over(0),
            _over(0, 1, 2),
        ),
        wrong(
            "no-root",
            f"divides by the {averaged}; it should divide by the square root of it",
            lambda x, eps: x.square().mean(-1, keepdim=True) + eps,
        ),
        Mistake(f"{title.lower()}-no-weight", f"{title} leaves out its weight.", [in_norms(kind, has_weight=False)]),
        Mistake(
            f"{title.lower()}-offset",
            f"{title} multiplies by 1 + weight in place of weight, or the other way round.",
            [in_norms(kind, offset=1.0), in_norms(kind, offset=0.0)],
        ),
    )


_NORMS = (
    *_of_norms(RMSNorm, "RMSNorm", "mean square"),
    Mistake("rmsnorm-mean", "RMSNorm subtracts the mean, as LayerNorm does.", [in_norms(RMSNorm, is_centered=True)]),
    *_of_norms(LayerNorm, "LayerNorm", "variance"),
    Mistake(
        "layernorm-no-mean",
        "LayerNorm does not subtract the mean; without it, it is RMSNorm.",
        [in_norms(LayerNorm, is_centered=False)],
    ),
    Mistake(
        "layernorm-unbiased",
        "LayerNorm's variance divides by D - 1, as torch.var and torch.std do by default; it should divide by D.",
        [
            in_norms(LayerNorm, divisor=_deviation),
            in_norms(LayerNorm, divisor=lambda x, eps: _deviation(x, 0.0) + eps),
        ],
    ),
    Mistake("layernorm-no-bias", "LayerNorm leaves out its bias.", [in_norms(LayerNorm, has_bias=False)]),
)

_ROTARY = (
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


_ATTENTION = (
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

_MLP = (
    Mistake(
        "gate-and-up-swapped",
        "The gate and the up projection are swapped: the activation belongs to the gate.",
        [in_mlps(lambda mlp: planting.swap(mlp, "gate", "up") if mlp.gate is not None else None)],
    ),
    *(
        Mistake(f"activation-{name}", f"The activation is {name}; the config has another.", [activated(name)])
        for name in ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "quick_gelu")
    ),
    Mistake(
        "activation-of-product",
        "The activation follows the product of gate and up; it belongs to the gate alone.",
        [gated(lambda activation, gate, up: activation(gate * up))],
    ),
    Mistake(
        "no-up-projection",
        "The MLP leaves out the up projection: its gate should be multiplied by it.",
        [gated(lambda activation, gate, up: activation(gate))],
    ),
    Mistake(
        "gate-added",
        "Gate and up are added; they should be multiplied.",
        [gated(lambda activation, gate, up: activation(gate) + up)],
    ),
    Mistake(
        "mlp-adds-input",
        "The MLP adds its input to its output; the layer adds the stream.",
        [in_mlps(planting.add_input)],
    ),
)

_LAYER = (
    Mistake(
        "post-norm",
        "The norms follow the addition to the stream (post-norm), which the config does not have.",
        [norms_moved(stream=True)],
    ),
    Mistake(
        "pre-norm", "The norms precede the branches (pre-norm), which the config does not have.", [norms_moved(True)]
    ),
    Mistake(
        "output-norm",
        "The norms are on the output of the branches, which the config does not have.",
        [norms_moved(after=True)],
    ),
    Mistake(
        "residual-after-norm",
        "The residual connection begins after the norm; it should begin before it.",
        [norms_moved(True, is_carried=True)],
    ),
    Mistake("no-norms", "The layer does not use its norms.", [norms_moved()]),
    Mistake(
        "branch-without-norm",
        "Attention or the MLP reads the stream without its norm.",
        [in_layers(planting.without_norms(name)) for name in ("attention_norms", "mlp_norms")],
    ),
    Mistake(
        "no-residual",
        "A residual connection is missing: the input of a branch should be added to its output.",
        [without_residual("attention", "mlp"), without_residual("attention"), without_residual("mlp")],
    ),
    Mistake(
        "parallel",
        "Attention and MLP read the same stream; the MLP should read the sum.",
        [in_layers(planting.parallel)],
    ),
    Mistake("mlp-first", "The MLP comes before attention; it should come after it.", [in_layers(planting.reverse)]),
    Mistake("norms-swapped", "The norms of attention and MLP are swapped.", [in_layers(planting.swap_norms)]),
    Mistake(
        "one-norm",
        "Attention and MLP share one norm; each should have its own.",
        [in_layers(planting.share_norm("attention_norms")), in_layers(planting.share_norm("mlp_norms"))],
    ),
)

_MODEL = (
    Mistake(
        "tied",
        "The head uses the matrix of the embedding (tied); the config has two matrices.",
        [in_model(planting.tie)],
    ),
    Mistake("no-final-norm", "The norm before the head is missing.", [in_model(planting.drop_final_norm)]),
    Mistake(
        "embedding-scale",
        "The embedding is multiplied by the square root of d_model and should not be, or the other way round.",
        [in_model(planting.scale_embedding)],
    ),
    Mistake("layer-skipped", "The first or the last layer is left out.", [*map(planting.skip_layer, (0, -1))]),
    Mistake(
        "softmax-in-model",
        "The model returns probabilities; it should return logits, because the loss applies the softmax.",
        [planting.apply_to_logits(lambda logits: logits.softmax(-1))],
    ),
    Mistake(
        "log-softmax-in-model",
        "The model returns log probabilities; it should return logits.",
        [planting.apply_to_logits(lambda logits: logits.log_softmax(-1))],
    ),
)

MISTAKES: Sequence[Mistake] = (*_NORMS, *_ROTARY, *_ATTENTION, *_MLP, *_LAYER, *_MODEL)
