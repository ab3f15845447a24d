"""Known mistakes in hand-written norms.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from archlab.model.norms import LayerNorm, RMSNorm
from archlab.testing.planting import Mistake, Plant
from archlab.testing.reference import Reference

Divisor = Callable[[Tensor, float], Tensor]
"""Function of the input, [..., T, D], and eps that returns the divisor of a norm."""


def in_norms(kind: type[RMSNorm] | type[LayerNorm], **wrong: Any) -> Plant:
    """Return a plant that changes the norms of a kind. `wrong` holds the changed arguments of `_normed`."""

    def plant(reference: Reference) -> None:
        for norm in reference.modules():
            if isinstance(norm, kind):
                norm.__dict__["forward"] = partial(_normed, norm, **wrong)

    return plant


def root(x: Tensor, eps: float) -> Tensor:
    """Return the right divisor: the root of the mean square plus eps, [..., T, 1]."""
    return (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _normed(
    norm: RMSNorm | LayerNorm,
    x: Tensor,
    *,
    divisor: Divisor = root,
    is_centered: bool | None = None,
    sees_mean: bool = False,
    has_weight: bool = True,
    offset: float | None = None,
    has_bias: bool = True,
) -> Tensor:
    """Return the norm's output. With `sees_mean`, the divisor is computed before the mean is subtracted."""
    is_centered = isinstance(norm, LayerNorm) if is_centered is None else is_centered
    centered = x - x.mean(-1, keepdim=True) if is_centered else x
    normed = centered / divisor(x if sees_mean else centered, norm.eps)
    if norm.weight is not None and has_weight:
        normed = normed * (norm.weight + (norm.offset if offset is None else offset))
    bias = norm.bias if isinstance(norm, LayerNorm) and has_bias else None
    return normed if bias is None else normed + bias


def _deviation(x: Tensor, eps: float) -> Tensor:
    """Return the root of the sum of squares over D - 1 plus eps, [..., T, 1], for an input without its mean."""
    return (x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps).sqrt()


def _over(*axes: int) -> Divisor:
    return lambda x, eps: (x.square().mean(axes, keepdim=True) + eps).sqrt()


def _with_eps(eps: float) -> Divisor:
    return lambda x, _: root(x, eps)


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


NORMS = (
    *_of_norms(RMSNorm, "RMSNorm", "mean square"),
    Mistake(
        "rmsnorm-mean",
        "RMSNorm subtracts the mean, as LayerNorm does.",
        [in_norms(RMSNorm, is_centered=True, sees_mean=sees_mean) for sees_mean in (False, True)],
    ),
    Mistake(
        "rmsnorm-absolute",
        "RMSNorm divides by the mean of the absolute values; it should divide by the root of the mean square.",
        [in_norms(RMSNorm, divisor=lambda x, eps: x.abs().mean(-1, keepdim=True) + eps)],
    ),
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
