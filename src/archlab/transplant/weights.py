"""Trained weights, and the architecture that they fit.

Tensors are read when they are needed, one at a time, so a process never has to hold a whole model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from archlab.config.core.base import Base
from archlab.config.layers import LayerConfig, encoder_of, layer_configs
from archlab.config.model_schema import ModelConfig

AnyConfig = TypeVar("AnyConfig", bound=Base)

Effect = Literal["exact", "approximate", "new"]
"""Effect of a change on the logits, before any training.

`exact`: they stay the same, up to rounding. `approximate`: they change, but the weights still carry what they learned.
`new`: parts of the model begin from random values, and need training.
"""

DECODER, ENCODER = "layers", "encoder.layers"
"""Names of the stacks, which begin the names of their tensors."""


Errors = Mapping[str, float]
"""Relative Frobenius errors |after - before| / |before| of weights, by the name of a matrix or of its part. They are
those of the layer in which they are largest."""


def no_errors() -> Errors:
    """Return the errors of a change that keeps what the weights are."""
    return {}


@dataclass(frozen=True)
class Change:
    """One change of trained weights."""

    name: str
    """Name of the transformation."""
    effect: Effect
    detail: str
    """Places and numbers, as in `layers 0 to 11: 32 key/value heads to 8`."""
    errors: Callable[[], Errors] = no_errors
    """Function that returns the errors of the new weights. It reads tensors, so it is called only for a report."""

    def report(self) -> str:
        """Return the detail and the errors, as in `layers 0 to 11: 32 to 8 heads; largest relative error: k.weight
        0.62, v.weight 0.71`."""
        errors = ", ".join(f"{name} {error:.2g}" for name, error in self.errors().items())
        return f"{self.detail}; largest relative error: {errors}" if errors else self.detail


@dataclass(frozen=True)
class LazyTensor:
    """Tensor that is computed when it is read."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    changes: tuple[str, ...] = ()
    """Names of the transformations that have changed the tensor, in order. Empty: the tensor is as it was stored."""
    sources: frozenset[str] = frozenset()
    """Names of the trained tensors on which the values depend."""

    @property
    def is_trained(self) -> bool:
        """Whether the values depend on trained weights."""
        return bool(self.sources)

    def then(self, transformation: str, change: Callable[[Tensor], Tensor], shape: Sequence[int]) -> "LazyTensor":
        """Return the tensor after a change, whose result has this shape."""
        return made(transformation, change, shape, self)


def stored(name: str, shape: Sequence[int], read: Callable[[], Tensor]) -> LazyTensor:
    """Return the trained tensor with this name."""
    return LazyTensor(tuple(shape), read, sources=frozenset({name}))


def made(transformation: str, make: Callable[..., Tensor], shape: Sequence[int], *inputs: LazyTensor) -> LazyTensor:
    """Return the tensor that `make` computes from other tensors. `transformation` is the name of the transformation."""
    changes = tuple(dict.fromkeys((*(name for tensor in inputs for name in tensor.changes), transformation)))
    return LazyTensor(tuple(shape), lambda: make(*(tensor.read() for tensor in inputs)), changes, sources_of(inputs))


def sources_of(tensors: Iterable[LazyTensor]) -> frozenset[str]:
    """Return the names of the trained tensors on which any of the tensors depends."""
    return frozenset[str]().union(*(tensor.sources for tensor in tensors))


def constant(transformation: str, shape: Sequence[int], value: float) -> LazyTensor:
    """Return a tensor whose elements are all `value`. `transformation` is the name of the transformation."""
    return made(transformation, partial(torch.full, tuple(shape), value), shape)


@dataclass(frozen=True)
class Architecture:
    """Architecture in which every layer has its own complete config, so that single layers can change."""

    model: ModelConfig
    """Sections outside the layers, such as `embedding` and `head`. Those of the layers are not read."""
    stacks: Mapping[str, tuple[LayerConfig, ...]]
    """Layers of each stack, by the beginning of their tensors' names: DECODER and, with an encoder, ENCODER."""

    @classmethod
    def of(cls, model: ModelConfig) -> "Architecture":
        """Return the architecture that a config describes."""
        encoder = encoder_of(model)
        of_encoder = {} if encoder is None else {ENCODER: layer_configs(encoder)}
        return cls(model, {DECODER: layer_configs(model), **of_encoder})


@dataclass(frozen=True)
class ChosenLayers:
    """Choice of trained layers."""

    layers: tuple[int, ...]
    """Trained layer of each layer of the decoder."""
    distance: float | None = None
    """Angular distance across the layers that are left out, if they were chosen by it."""


@dataclass(frozen=True)
class Target(Architecture):
    """Architecture that trained weights should become."""

    chosen: ChosenLayers | None = None
    """Trained layers of the decoder. None: all of them in order."""


@dataclass(frozen=True)
class Weights:
    """Trained weights with their architecture, and the changes that they have had."""

    architecture: Architecture
    tensors: Mapping[str, LazyTensor]
    """Tensors by their names in `Decoder`."""
    changes: tuple[Change, ...] = ()
    inert: tuple[str, ...] = ()
    """Beginnings of the names of new tensors that do not change the logits, whatever their initial values are."""

    @property
    def model(self) -> ModelConfig:
        return self.architecture.model

    def pairs(self, target: Architecture) -> Iterator[tuple[str, LayerConfig, LayerConfig]]:
        """Yield (name, own config, config in `target`) of each layer, as in `("layers.3", ..., ...)`. Both
        architectures must have equally many layers."""
        for stack, layers in self.architecture.stacks.items():
            for i, (own, wanted) in enumerate(zip(layers, target.stacks[stack], strict=True)):
                yield f"{stack}.{i}", own, wanted

    def under(self, place: str) -> dict[str, LazyTensor]:
        """Return the tensors of a module, by their names in the module."""
        beginning = f"{place}."
        return {name.removeprefix(beginning): x for name, x in self.tensors.items() if name.startswith(beginning)}

    def changed(
        self,
        change: Change,
        *,
        tensors: Mapping[str, LazyTensor] | None = None,
        dropped: Sequence[str] = (),
        layers: Mapping[str, LayerConfig] | None = None,
        model: ModelConfig | None = None,
        inert: Sequence[str] = (),
    ) -> "Weights":
        """Return the weights after a change.

        `tensors` are added or replaced, and `dropped` are removed. `layers` holds the new configs of layers, by name.
        `model` replaces the sections outside the layers. `inert` is added to the inert tensors.
        """
        stacks = {
            stack: tuple((layers or {}).get(f"{stack}.{i}", layer) for i, layer in enumerate(all_layers))
            for stack, all_layers in self.architecture.stacks.items()
        }
        kept = {name: x for name, x in self.tensors.items() if name not in dropped}
        return Weights(
            Architecture(model or self.model, stacks),
            {**kept, **(tensors or {})},
            (*self.changes, change),
            (*self.inert, *inert),
        )

    def with_stack(
        self,
        change: Change,
        stack: str,
        layers: Sequence[LayerConfig],
        tensors: Mapping[str, LazyTensor],
        inert: Sequence[str] = (),
    ) -> "Weights":
        """Return the weights after a change that replaces all layers of a stack. `tensors` are those of the new
        layers."""
        outside = {name: x for name, x in self.tensors.items() if not name.startswith(f"{stack}.")}
        replaced = replace(self.architecture, stacks={**self.architecture.stacks, stack: tuple(layers)})
        return Weights(replaced, {**outside, **tensors}, (*self.changes, change), (*self.inert, *inert))


def with_fields(config: LayerConfig, place: str, **fields: object) -> LayerConfig:
    """Return a layer with other values of some fields of a section, such as `attention`."""
    section: Base = getattr(config, place)
    return config.model_copy(update={place: section.model_copy(update=fields)})


def with_value(config: AnyConfig, field: str, value: object) -> AnyConfig:
    """Return a config with another value of one field, such as `attention.gate.bias`."""
    name, _, rest = field.partition(".")
    return config.model_copy(update={name: with_value(getattr(config, name), rest, value) if rest else value})


def numbered(names: Sequence[str]) -> str:
    """Return the names of layers as text: `layers.0` to `layers.2` are `layers 0 to 2`, and `layers.3` is `layer 3`."""
    by_stack: dict[str, list[int]] = {}
    for name in names:
        stack, _, index = name.rpartition(".")
        by_stack.setdefault(stack, []).append(int(index))
    return " and ".join(_of_stack(stack.replace(".", " "), sorted(set(i))) for stack, i in by_stack.items())


def _of_stack(stack: str, indices: list[int]) -> str:
    return f"{stack} {_ranges(indices)}" if len(indices) > 1 else f"{stack.removesuffix('s')} {indices[0]}"


def _ranges(indices: list[int]) -> str:
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
