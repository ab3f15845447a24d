"""How many parameters models have that differ in their depth and in the width of their MLPs only."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from archlab.config.layers import layer_configs
from archlab.pricing.params import parameters
from archlab.sizing.family import By
from archlab.sizing.scale import Shape, Template


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

    def __init__(self, template: Template, shape: Shape) -> None:
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


def _count(template: Template, shape: Shape) -> _Counted:
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
