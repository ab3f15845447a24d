"""The shape of a wanted size that is nearest to the habits of a family."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from archlab.config.layers import layer_configs
from archlab.config.schema import Config
from archlab.pricing.params import parameters
from archlab.review.shape_rule import LARGE
from archlab.review.warning_rules import usual_devices
from archlab.sizing.family import By, Family
from archlab.sizing.scale import Heads, ScalableModel, Shape, rounded, step_at

TOLERANCE = 0.01
"""How far the size may be from the one that was asked for."""
_ACTIVE_TOLERANCE = 0.05
"""The same of active parameters beside a size."""

NARROWEST = 64
"""Width of the stream."""
_WIDTHS = tuple(
    chain(range(NARROWEST, 1024, 64), range(1024, 4096, 128), range(4096, 8192, 256), range(8192, 65_537, 512))
)
"""Of the stream; a family's own come on top."""
_NEIGHBOURS = 6
"""Widths to each side of the likeliest that are tried."""
_FEWEST, _DEEPEST = 8, 100
"""Where there would be fewer heads, they become narrower; where there would be fewer layers, or more than 100, the
stream becomes narrower or wider. A template that has fewer or more itself keeps to them."""
_NARROWEST_HEADS = {True: 32, False: 64}
"""Of experiments (streams narrower than 512), and of other models."""
_FARTHEST = math.log(2.5)
"""The ratios d_model / n_layers and d_ff / d_model may be so far from the family's."""


@dataclass(frozen=True)
class TargetSize:
    """A size."""

    size: float
    """Parameters, counted as the family's are."""
    active: int | None = None
    """How many of them a token makes use of. None: as it comes."""


class Search:
    """Over widths and depths; the width of the MLPs then follows from the size."""

    def __init__(self, family: Family, template: ScalableModel, wanted: TargetSize) -> None:
        self._by: By = family.by
        self._template, self._wanted = template, wanted
        self._aspect = family.at(wanted.size, lambda member: member.aspect)
        self._ff_ratio = family.at(wanted.size, lambda member: member.ff_ratio)
        self._attention_ratio = family.at(wanted.size, lambda member: member.attention_ratio)
        self._widths = sorted({*_WIDTHS, *(member.d_model for member in family.members)})
        self._stacks: dict[int, Stack] = {}

    def best(self) -> tuple[Shape, Config] | None:
        """The likeliest whose size, counted exactly, is right; None where none is near the family's habits."""
        centre = bisect_left(self._widths, 0, key=self._excess)
        near = self._widths[max(0, centre - _NEIGHBOURS) : centre + _NEIGHBOURS + 1]
        found = sorted(chain.from_iterable(map(self._candidates, near)), key=lambda pair: pair[0])
        configs = ((shape, self._template.config(shape)) for _, shape in found)
        return next((pair for pair in configs if self._is_right(pair[1])), None)

    def _is_right(self, config: Config) -> bool:
        return abs(getattr(parameters(config.model), self._by) / self._wanted.size - 1) <= TOLERANCE

    def _excess(self, d: int) -> float:
        """Of a model of that width with the family's ratios, over what is wanted; of active parameters where these are
        said, the MLPs being as wide as the size asks for."""
        stack, depth = self._stack(d), round(self._depth(d))
        if self._wanted.active is None:
            return getattr(stack.sizes(depth, self._usual_width(d)), self._by) - self._wanted.size
        width = stack.width_for(self._wanted.size, self._by, depth)
        return stack.sizes(depth, width).active - self._wanted.active if width > 0 else math.inf

    def _candidates(self, d: int) -> Iterator[tuple[float, Shape]]:
        """Shapes of that width, each with how far it is from what is wanted."""
        stack, step = self._stack(d), step_at(d)
        for n_layers in self._depths(d):
            width = stack.width_for(self._wanted.size, self._by, n_layers)
            for chosen in {math.floor(width / step) * step, math.ceil(width / step) * step} - {0}:
                if width > 0 and (distance := self._distance(d, n_layers, chosen)) is not None:
                    yield distance, self._shape(d, n_layers, chosen)

    def _depths(self, d: int) -> set[int]:
        """Those near the family's ratio, and those that fill the size where MLPs are as wide as the family's."""
        stack, usual, first = self._stack(d), self._usual_width(d), self._template.shallowest
        one, two = (getattr(stack.sizes(n, usual), self._by) for n in (first, 2 * first))
        filled = first + (self._wanted.size - one) / (two - one) * first
        return {max(first, math.floor(depth) + i) for depth in (self._depth(d), filled) for i in (-1, 0, 1, 2)}

    def _distance(self, d: int, n_layers: int, width: int) -> float | None:
        """A sum of squares of logarithms of ratios, and little for what is uneven; None where it is too far."""
        sizes = self._stack(d).sizes(n_layers, width)
        miss = math.log(getattr(sizes, self._by) / self._wanted.size) / TOLERANCE
        depth, ff = math.log(n_layers / self._depth(d)), math.log(width / self._usual_width(d))
        if max(abs(depth), abs(ff)) > _FARTHEST:
            return None
        beside = depth**2 + self._off(self._heads(d), d) + (d % 128 > 0) / 5000 + miss**2 / 10_000
        if self._wanted.active is None:
            return beside + ff**2
        off = math.log(sizes.active / self._wanted.active)
        return beside + ff**2 / 20 + (10 * off) ** 2 if abs(off) <= _ACTIVE_TOLERANCE else None

    def _depth(self, d: int) -> float:
        """Layers that the family would have at that width; from 8 to 100, unless the template has fewer or more."""
        depth = min(d / self._aspect, max(_DEEPEST, self._template.member.n_layers))
        return max(depth, min(_FEWEST, self._template.member.n_layers), self._template.shallowest)

    def _usual_width(self, d: int) -> float:
        """Of an MLP or an expert, as the family would have it at that width."""
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
        """At that width of the stream: as the family has them, or the nearest number that can be cut over devices and
        has as many KV heads as the template."""
        own, width = self._template.heads, self._attention_ratio * d
        dim = own.dim
        while own.n_kv and width / dim < min(_FEWEST, own.n) and dim // 2 >= _NARROWEST_HEADS[d < LARGE]:
            dim //= 2
        even = math.lcm(self._devices, own.n_kv or 1)
        counts = {max(1, round(width / dim)), max(1, round(width / dim / even)) * even}
        return min((own.like(n, dim) for n in sorted(counts)), key=lambda heads: self._off(heads, d))

    def _off(self, heads: Heads, d: int) -> float:
        """How far from the family's: heads that cannot be cut over devices, where the template's can, are worse than a
        ratio that is 30% off."""
        own = self._template.heads
        uneven = heads.uneven(self._devices) > own.uneven(self._devices)
        groups = math.log((heads.n_kv or 1) / (own.n_kv or 1)) ** 2 if own.is_grouped else 0
        return math.log(heads.n * heads.dim / d / self._attention_ratio) ** 2 + (uneven + groups) / 10

    @property
    def _devices(self) -> int:
        return usual_devices(self._wanted.size) or 2  # an even number of heads costs nothing


class Sizes(NamedTuple):
    """Parameters."""

    total: float
    active: float


@dataclass(frozen=True)
class _Counted:
    """What is around the layers, and each kind of layer."""

    width: int
    around: Sizes
    kinds: dict[str, Sizes]


class Stack:
    """Counts of two widths; between and beyond them counts grow in proportion, but for the rounding of other widths."""

    def __init__(self, template: ScalableModel, shape: Shape) -> None:
        self._template = template
        self._narrow, self._wide = (_count(template, replace(shape, width=n * shape.width)) for n in (1, 2))

    def sizes(self, n_layers: int, width: float) -> Sizes:
        """Of a model of that depth, and with MLPs of that width."""
        low, high = self._of_both(n_layers)
        share = (width - self._narrow.width) / (self._wide.width - self._narrow.width)
        return Sizes(*(a + (b - a) * share for a, b in zip(low, high, strict=True)))

    def width_for(self, size: float, by: By, n_layers: int) -> float:
        """Of the MLPs with which a model of that depth has that size."""
        low, high = (getattr(sizes, by) for sizes in self._of_both(n_layers))
        return self._narrow.width + (size - low) / (high - low) * (self._wide.width - self._narrow.width)

    def _of_both(self, n_layers: int) -> tuple[Sizes, Sizes]:
        pattern = self._template.pattern(n_layers)
        numbers = {kind: pattern.count(kind) for kind in self._narrow.kinds}
        low, high = (
            Sizes(*(counted.around[i] + sum(n * counted.kinds[kind][i] for kind, n in numbers.items()) for i in (0, 1)))
            for counted in (self._narrow, self._wide)
        )
        return low, high


def _count(template: ScalableModel, shape: Shape) -> _Counted:
    shape = replace(shape, n_layers=template.shallowest)
    model = template.config(shape).model
    layers = layer_configs(model)
    each = {layer.kind: Sizes(layer.parameters().total(), layer.active_parameters()) for layer in layers}
    whole, numbers = parameters(model), [layer.kind for layer in layers]
    around = (
        all_of_them - sum(each[kind][i] for kind in numbers)
        for i, all_of_them in enumerate((whole.total, whole.active))
    )
    return _Counted(shape.width, Sizes(*around), each)
