"""The published models whose habits a proposal follows."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from archlab.atlas import words
from archlab.atlas.models import PublishedModel
from archlab.config.components.component import Absent
from archlab.config.components.multi_head import MultiHead
from archlab.config.io import facts, find_preset, presets
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.problems import nearest
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.pricing.params import Parameters, parameters


@dataclass(frozen=True)
class FamilyMember:
    """A model, and what is proportioned in it."""

    name: str
    config: Config

    @cached_property
    def layers(self) -> tuple[LayerConfig, ...]:
        """All of them."""
        return layer_configs(self.config.model)

    @cached_property
    def counted(self) -> Parameters:
        """Its parameters."""
        return parameters(self.config.model)

    @property
    def d_model(self) -> int:
        """Width of the stream."""
        return self.config.model.d_model

    @property
    def n_layers(self) -> int:
        """Layers."""
        return self.config.model.n_layers

    @property
    def d_ff(self) -> int:
        """Width of the MLP; of a mixture, of all experts together that a token passes through."""
        return words.mlp_width(self.layers) or 0

    @property
    def is_mixture(self) -> bool:
        """Whether it has experts."""
        return bool(words.mixtures(self.layers))

    @property
    def multi_head(self) -> MultiHead | None:
        """Its attention, unless that is latent."""
        return next((x for x in words.attentions(self.layers) if isinstance(x, MultiHead)), None)

    @property
    def n_heads(self) -> int:
        """Query heads of the first layer."""
        return words.attentions(self.layers)[0].n_heads

    @property
    def head_dim(self) -> int:
        """Width of a query."""
        return words.attentions(self.layers)[0].query_width

    @property
    def aspect(self) -> float:
        """d_model / n_layers."""
        return self.d_model / self.n_layers

    @property
    def ff_ratio(self) -> float:
        """d_ff / d_model."""
        return self.d_ff / self.d_model

    @property
    def attention_ratio(self) -> float:
        """n_heads * head_dim / d_model."""
        return self.n_heads * self.head_dim / self.d_model


CAN_BE_SCALED = "allowed are models of attention, with the same heads, and an MLP in every layer"

By = Literal["total", "active"]
"""Which of a model's parameters its size is: all, or those that a token makes use of."""


@dataclass(frozen=True)
class Family:
    """Models of one kind, by size."""

    members: Sequence[FamilyMember]
    by: By

    def nearest(self, target: float, active: float | None = None) -> FamilyMember:
        """The one whose size is nearest, as a ratio; where active parameters are said, with their share."""

        def distance(member: FamilyMember) -> float:
            size = abs(math.log(self._size(member) / target))
            share = member.counted.active / member.counted.total
            return size if active is None else size + abs(math.log(share * target / active))

        return min(self.members, key=distance)

    def beside(self, target: float) -> list[FamilyMember]:
        """The largest below a size and the smallest from it on, as far as there are such."""
        below = [member for member in self.members if self._size(member) < target]
        above = [member for member in self.members if self._size(member) >= target]
        return [*below[-1:], *above[:1]]

    def at(self, target: float, ratio: Callable[[FamilyMember], float]) -> float:
        """A ratio at a size: between two members in proportion to logarithms, beyond the last as the last has it."""
        first, last = (self.beside(target) * 2)[:2]
        low, high = self._size(first), self._size(last)
        share = math.log(target / low) / math.log(high / low) if low < high else 0.0
        return ratio(first) ** (1 - share) * ratio(last) ** share

    def _size(self, member: FamilyMember) -> int:
        return getattr(member.counted, self.by)


def family_of(like: str, by: By, atlas: Sequence[PublishedModel], *, mixtures: bool) -> Family:
    """The family or the preset of that name; of a family that has both, the dense models unless mixtures are asked for.

    UserError where there is none, or none whose shape can be proposed.
    """
    found = _named(like, atlas)
    able = [member for member in found if can_be_scaled(member)]
    if not able:
        raise UserError(f"--like {like}: {CAN_BE_SCALED}")
    kinds = {member.is_mixture for member in able}
    if mixtures and True not in kinds:
        raise UserError(f"--active: {like} has no experts; allowed: families of mixtures, such as qwen3 or deepseek-v2")
    wanted = mixtures or False not in kinds
    of_kind = [member for member in able if member.is_mixture == wanted]
    return Family(sorted(of_kind, key=lambda member: getattr(member.counted, by)), by)


def _named(like: str, atlas: Sequence[PublishedModel]) -> list[FamilyMember]:
    members = [
        FamilyMember(entry.preset, entry.config) for entry in atlas if entry.family == like and entry.about.buildable
    ]
    if members:
        return members
    file = find_preset(like)
    name = next((name for name, known in presets().items() if known == file), None)
    if name:
        return [FamilyMember(name, load_config(name))]
    if file or any(entry.family == like for entry in atlas):
        raise UserError(f"--like {like}: facts only: archlab cannot build it; `archlab list presets` shows what it can")
    known = {*presets(), *(entry.family for entry in atlas)} - set(facts())
    raise UserError(
        f"--like {like!r}: neither a family nor a preset{nearest(like, known) or '; `archlab list presets` shows them'}"
    )


def can_be_scaled(member: FamilyMember) -> bool:
    """Whether every layer has attention, with the same heads, and an MLP, and no recurrent mixer."""
    complete = all(
        isinstance(layer.mixer, Absent)
        and not isinstance(layer.attention, Absent)
        and not isinstance(layer.mlp, Absent)
        for layer in member.layers
    )
    return complete and len({(x.n_heads, x.query_width) for x in words.attentions(member.layers)}) == 1


def nearest_published(proposed: FamilyMember, atlas: Sequence[PublishedModel]) -> PublishedModel:
    """The model of the atlas whose shape is nearest: in widths and depth, and a little in the vocabulary."""
    models = [(entry, FamilyMember(entry.preset, entry.config)) for entry in atlas]
    able = [(_distance(model, proposed), entry) for entry, model in models if can_be_scaled(model)]
    return min(able, key=lambda pair: pair[0])[1]


def _distance(one: FamilyMember, other: FamilyMember) -> float:
    shapes: Iterable[tuple[float, float, float]] = (
        (one.d_model, other.d_model, 1),
        (one.n_layers, other.n_layers, 1),
        (one.d_ff, other.d_ff, 1),
        (one.config.model.vocab_size, other.config.model.vocab_size, 0.25),
    )
    mixed = one.is_mixture != other.is_mixture
    return math.hypot(*(weight * math.log(a / b) for a, b, weight in shapes)) + mixed
