"""Find the config classes that a field may hold, from its annotation."""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from archlab.config.components.activation import Activation
from archlab.config.components.component import MLP, Attention, Mixer
from archlab.config.components.norm import BlockNorm
from archlab.config.components.position import Position
from archlab.config.core.base import kind_of
from archlab.config.core.registry import KindName, Registered, is_open, is_users, kinds
from archlab.config.layers import distinct_layers
from archlab.config.schema import Config

COMPONENTS: dict[str, type[Registered]] = {
    "norm": BlockNorm, "activation": Activation, "position": Position, "attention": Attention, "mixer": Mixer, "mlp": MLP,
}  # fmt: skip
"""Section of a model -> the base class of its kinds."""


def classes_in(annotation: Any) -> list[type[BaseModel]]:
    """Return every config class in an annotation, at any depth.

    For a section with open kinds, return all of archlab's own kinds.
    """
    if isinstance(annotation, type) and issubclass(annotation, Registered) and is_open(annotation):
        return [config for config in kinds(annotation).values() if not is_users(config)]
    own = [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
    return own + [found for part in get_args(annotation) for found in classes_in(part)]


def kind_names(field: FieldInfo) -> list[str]:
    """Return the kinds that a field may name, if it holds the name of a kind."""
    return [kind for mark in field.metadata if isinstance(mark, KindName) for kind in _archlabs(mark.root)]


def _archlabs(root: type[Registered]) -> list[str]:
    """Return the kinds without those of plug-ins that other tests have loaded."""
    return [kind for kind, config in kinds(root).items() if not is_users(config)]


def without_a_row(configs: Iterable[Config], sections: Iterable[str] = COMPONENTS) -> set[str]:
    """Return `section kind` for every registered kind of these sections that no layer of these configs uses."""
    found = {kind for config in configs for layer in distinct_layers(config.model) for kind in _kinds_in(layer)}
    known = {f"{section} {kind}" for section in sections for kind in _archlabs(COMPONENTS[section])}
    return known - found - {f"{section} none" for section in sections}


def _kinds_in(value: Any) -> Iterator[str]:
    """Yield `section kind` of a value and of the values inside it."""
    if isinstance(value, Registered):
        yield f"{value.section} {kind_of(type(value))}"
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            marks = [mark.root.section for mark in field.metadata if isinstance(mark, KindName)]
            yield from (f"{section} {getattr(value, name)}" for section in marks)
            yield from _kinds_in(getattr(value, name))
