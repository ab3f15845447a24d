"""Search for the shape that has a target size and is closest to the proportions of a family."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from archlab.config.layers import encoder_of, layer_configs
from archlab.config.schema import Config
from archlab.pricing.params import parameters
from archlab.review.shape_rule import LARGE
from archlab.review.warning_rules import usual_devices
from archlab.sizing.family import Family, SizeMeasure
from archlab.sizing.scale import Heads, ScalableModel, Shape, rounded, step_at

TOLERANCE = 0.01
"""Relative tolerance of the size."""
_ACTIVE_TOLERANCE = 0.05
"""Tolerance for the logarithm of the ratio of active parameters, if both total and active parameters are given."""

NARROWEST = 64
"""Smallest d_model."""
_WIDTHS = tuple(
    chain(
        range(NARROWEST, 256, 32),
        range(256, 1024, 64),
        range(1024, 4096, 128),
        range(4096, 8192, 256),
        range(8192, 65_537, 512),
    )
)
"""Candidates for d_model. The widths of the family's members are tried, too."""
_NEIGHBORS = 6
_FEWEST, _DEEPEST = 8, 100
"""Minimum number of heads and of layers (8), and maximum number of layers (100).

Narrower heads are tried if there would be fewer than 8. If there would be fewer than 8 or more than 100 layers, d_model
becomes smaller or larger. A template outside these limits may stay outside.
"""
_NARROWEST_HEADS = {True: 32, False: 64}
"""Minimum head width: 32 if d_model is below 512, as in experiments, otherwise 64."""
_INEXACT = 10
"""Penalty for heads that do not have d_model dimensions together, although those of the family have. It is larger than
all other parts of a distance."""
_FARTHEST = math.log(2.5)
"""Maximum deviation of d_model / n_layers and d_ff / d_model from the family: log(2.5), which is a factor of 2.5."""


@dataclass(frozen=True)
class TargetSize:
    """Target size in parameters."""

    size: float
    """Number of parameters, counted like those of the family (total or active)."""
    active: int | None = None
    """Number of active parameters. None if any number is accepted."""


class Search:
    """Search over widths and depths. The width of the MLPs follows from the target size."""

    def __init__(self, family: Family, template: ScalableModel, target: TargetSize) -> None:
        self._by: SizeMeasure = family.by
        self._template, self._target = template, target
        self._aspect = family.ratio_at(target.size, lambda member: member.aspect)
        self._ff_ratio = family.ratio_at(target.size, lambda member: member.ff_ratio)
        self._attention_ratio = family.ratio_at(target.size, lambda member: member.attention_ratio)
        self._fill_the_width = self._template.heads.n_kv is not None and all(
            member.n_heads * member.head_dim == member.d_model for member in family.members
        )
        self._widths = sorted({*_WIDTHS, *(member.d_model for member in family.members)})
        self._stacks: dict[int, Stack] = {}

    def best(self) -> tuple[Shape, Config] | None:
        """Return the shape closest to the family that has the target size within the tolerance, with its config.

        Return None if no such shape is close enough to the family.
        """
        center = bisect_left(self._widths, 0, key=self._excess)
        widths = self._widths[max(0, center - _NEIGHBORS) : center + _NEIGHBORS + 1]
        candidates = sorted(chain.from_iterable(map(self._candidates, widths)), key=lambda pair: pair[0])
        configs = ((shape, self._template.config(shape)) for _, shape in candidates)
        return next((pair for pair in configs if self._is_right(pair[1])), None)

    def _is_right(self, config: Config) -> bool:
        return abs(getattr(parameters(config.model), self._by) / self._target.size - 1) <= TOLERANCE

    def _excess(self, d: int) -> float:
        """Return the number of parameters by which a model with d_model = `d` and the family's ratios exceeds the
        target size.

        If the target has a number of active parameters, active parameters are compared. The width of the MLPs then
        follows from the target size.
        """
        stack, depth = self._stack(d), round(self._depth(d))
        if self._target.active is None:
            return getattr(stack.sizes(depth, self._usual_width(d)), self._by) - self._target.size
        width = stack.width_for(self._target.size, self._by, depth)
        return stack.sizes(depth, width).active - self._target.active if width > 0 else math.inf

    def _candidates(self, d: int) -> Iterator[tuple[float, Shape]]:
        stack, step = self._stack(d), step_at(d)
        for n_layers in self._depths(d):
            width = stack.width_for(self._target.size, self._by, n_layers)
            for chosen in {math.floor(width / step) * step, math.ceil(width / step) * step} - {0}:
                if width > 0 and (distance := self._distance(d, n_layers, chosen)) is not None:
                    yield distance, self._shape(d, n_layers, chosen)

    def _depths(self, d: int) -> set[int]:
        """Return candidates for the number of layers.

        They are close to the depth that follows from the family's ratio, and to the depth that gives the target size
        with MLPs of the family's width.
        """
        stack, usual, first = self._stack(d), self._usual_width(d), self._template.shallowest
        small, large = (getattr(stack.sizes(n, usual), self._by) for n in (first, 2 * first))
        filled = first + (self._target.size - small) / (large - small) * first
        return {max(first, math.floor(depth) + i) for depth in (self._depth(d), filled) for i in (-1, 0, 1, 2)}

    def _distance(self, d: int, n_layers: int, width: int) -> float | None:
        """Return the distance of a shape from the family, or None if it is too far away.

        The distance is a sum of squared logarithms of ratios, plus small penalties for numbers that hardware divides
        badly.
        """
        sizes = self._stack(d).sizes(n_layers, width)
        miss = math.log(getattr(sizes, self._by) / self._target.size) / TOLERANCE
        depth, ff = math.log(n_layers / self._depth(d)), math.log(width / self._usual_width(d))
        if max(abs(depth), abs(ff)) > _FARTHEST:
            return None
        distance = depth**2 + self._off(self._heads(d), d) + (d % 128 > 0) / 5000 + miss**2 / 10_000
        if self._target.active is None:
            return distance + ff**2
        off = math.log(sizes.active / self._target.active)
        return distance + ff**2 / 20 + (10 * off) ** 2 if abs(off) <= _ACTIVE_TOLERANCE else None

    def _depth(self, d: int) -> float:
        """Return the family's number of layers at d_model = `d`: 8 to 100, unless the template has fewer or more."""
        depth = min(d / self._aspect, max(_DEEPEST, self._template.member.n_layers))
        return max(depth, min(_FEWEST, self._template.member.n_layers), self._template.shallowest)

    def _usual_width(self, d: int) -> float:
        member = self._template.member
        return self._template.width * (d / member.d_model) * (self._ff_ratio / member.ff_ratio)

    def _stack(self, d: int) -> "Stack":
        if d not in self._stacks:
            shape = self._shape(d, self._template.shallowest, rounded(self._usual_width(d), d))
            self._stacks[d] = Stack(self._template, shape)
        return self._stacks[d]

    def _shape(self, d: int, n_layers: int, width: int) -> Shape:
        heads = self._heads(d)
        if self._template.heads.n_kv is None:
            return Shape(d, n_layers, heads.n, None, None, width)
        return Shape(d, n_layers, heads.n, heads.n_kv, heads.dim, width)

    def _heads(self, d: int) -> Heads:
        """Return the heads at d_model = `d`.

        If the heads of all members of the family have d_model dimensions together, so have these heads, if their width
        divides d_model. Otherwise, the number of heads is that of the family, or the closest number that can be divided
        evenly among devices and by the template's number of KV heads.
        """
        own, dim = self._template.heads, self._head_dim(d)
        if self._fill_the_width and d % dim == 0:
            return own.like(d // dim, dim)
        width = self._attention_ratio * d
        even = math.lcm(self._devices, own.n_kv or 1)
        counts = {max(1, round(width / dim)), max(1, round(width / dim / even)) * even}
        return min((own.like(n, dim) for n in sorted(counts)), key=lambda heads: self._off(heads, d))

    def _head_dim(self, d: int) -> int:
        """Return the width of a head at d_model = `d`: that of the template, or a half of it if there would be too few
        heads."""
        own, dim = self._template.heads, self._template.heads.dim
        few = min(_FEWEST, own.n)
        while own.n_kv and self._attention_ratio * d / dim < few and dim // 2 >= _NARROWEST_HEADS[d < LARGE]:
            dim //= 2
        return dim

    def _off(self, heads: Heads, d: int) -> float:
        """Return the distance of the heads from those of the family.

        If these heads cannot be divided evenly among devices but those of the template can, the penalty is larger than
        for a total head width that deviates by 30%. If the heads of the family have d_model dimensions together, other
        heads are chosen only if nothing else has the target size.
        """
        own = self._template.heads
        uneven = heads.uneven(self._devices) > own.uneven(self._devices)
        groups = math.log((heads.n_kv or 1) / (own.n_kv or 1)) ** 2 if own.is_grouped else 0
        return (
            math.log(heads.n * heads.dim / d / self._attention_ratio) ** 2
            + (uneven + groups) / 10
            + (_INEXACT if self._fill_the_width and heads.n * heads.dim != d else 0)
        )

    @property
    def _devices(self) -> int:
        return usual_devices(self._target.size) or 2  # an even number of heads has no disadvantage


class Sizes(NamedTuple):
    """Parameter counts."""

    total: float
    active: float


@dataclass(frozen=True)
class _Counted:
    """Parameter counts outside the layers, and of each kind of layer."""

    width: int
    outside_layers: Sizes
    kinds: dict[str, Sizes]


class Stack:
    """Parameter counts of a model for any depth and MLP width.

    The counts are extrapolated linearly from two MLP widths. The only error is that some widths are rounded.
    """

    def __init__(self, template: ScalableModel, shape: Shape) -> None:
        self._template = template
        self._narrow, self._wide = (_count(template, replace(shape, width=n * shape.width)) for n in (1, 2))

    def sizes(self, n_layers: int, width: float) -> Sizes:
        low, high = self._both_sizes(n_layers)
        share = (width - self._narrow.width) / (self._wide.width - self._narrow.width)
        return Sizes(*(a + (b - a) * share for a, b in zip(low, high, strict=True)))

    def width_for(self, size: float, by: SizeMeasure, n_layers: int) -> float:
        """Return the MLP width with which a model of `n_layers` layers has the given size."""
        low, high = (getattr(sizes, by) for sizes in self._both_sizes(n_layers))
        return self._narrow.width + (size - low) / (high - low) * (self._wide.width - self._narrow.width)

    def _both_sizes(self, n_layers: int) -> tuple[Sizes, Sizes]:
        pattern = self._template.pattern(n_layers)
        numbers = {kind: pattern.count(kind) for kind in self._narrow.kinds}
        low, high = (
            Sizes(
                *(
                    counted.outside_layers[i] + sum(n * counted.kinds[kind][i] for kind, n in numbers.items())
                    for i in (0, 1)
                )
            )
            for counted in (self._narrow, self._wide)
        )
        return low, high


def _count(template: ScalableModel, shape: Shape) -> _Counted:
    shape = replace(shape, n_layers=template.shallowest)
    model = template.config(shape).model
    layers = layer_configs(model)
    encoder = encoder_of(model)
    # An encoder has as many layers as the decoder, so each decoder layer brings one encoder layer with it.
    beside = layer_configs(encoder)[:1] if encoder else ()
    sizes = {
        layer.kind: Sizes(
            sum(each.parameters().total() for each in (layer, *beside)),
            sum(each.active_parameters() for each in (layer, *beside)),
        )
        for layer in layers
    }
    whole, kinds = parameters(model), [layer.kind for layer in layers]
    outside_layers = (
        n_parameters - sum(sizes[kind][i] for kind in kinds)
        for i, n_parameters in enumerate((whole.total, whole.active))
    )
    return _Counted(shape.width, Sizes(*outside_layers), sizes)
