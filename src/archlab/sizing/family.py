"""Families of published models. A proposal follows the proportions of a family."""

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
from archlab.config.layers import LayerConfig, encoder_of, layer_configs
from archlab.config.problems import nearest
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.pricing.params import Parameters, parameters


@dataclass(frozen=True)
class FamilyMember:
    """A model of a family, with its parameter counts and proportions."""

    name: str
    config: Config

    @cached_property
    def layers(self) -> tuple[LayerConfig, ...]:
        return layer_configs(self.config.model)

    @cached_property
    def counted(self) -> Parameters:
        return parameters(self.config.model)

    @property
    def d_model(self) -> int:
        return self.config.model.d_model

    @property
    def n_layers(self) -> int:
        return self.config.model.n_layers

    @property
    def d_ff(self) -> int:
        """Width of the MLP. In a mixture of experts, the total width of all experts that a token uses."""
        return words.mlp_width(self.layers) or 0

    @property
    def is_mixture(self) -> bool:
        return bool(words.mixtures(self.layers))

    @property
    def multi_head(self) -> MultiHead | None:
        """First multi-head attention of the model. None if the model has only latent attention."""
        return next((x for x in words.attentions(self.layers) if isinstance(x, MultiHead)), None)

    @property
    def n_heads(self) -> int:
        return words.attentions(self.layers)[0].n_heads

    @property
    def head_dim(self) -> int:
        return words.attentions(self.layers)[0].query_width

    @property
    def aspect(self) -> float:
        return self.d_model / self.n_layers

    @property
    def ff_ratio(self) -> float:
        return self.d_ff / self.d_model

    @property
    def attention_ratio(self) -> float:
        return self.n_heads * self.head_dim / self.d_model


CAN_BE_SCALED = (
    "allowed: models that have an MLP and attention with the same heads in every layer, "
    "and an encoder, if any, with as many layers of the same widths"
)

SizeMeasure = Literal["total", "active"]
"""Measure of a model's size: all parameters, or only those that a token uses."""


@dataclass(frozen=True)
class Family:
    """Models of one kind, sorted by size."""

    members: Sequence[FamilyMember]
    by: SizeMeasure

    def nearest(self, target: float, active: float | None = None) -> FamilyMember:
        """Return the member whose size is closest to `target` parameters, compared as a ratio.

        If `active` is given, the fraction of active parameters is compared, too.
        """

        def distance(member: FamilyMember) -> float:
            size = abs(math.log(self._size(member) / target))
            share = member.counted.active / member.counted.total
            return size if active is None else size + abs(math.log(share * target / active))

        return min(self.members, key=distance)

    def neighbors(self, target: float) -> list[FamilyMember]:
        """Return the largest member below the target size, and the smallest one at or above the target size, if they
        exist."""
        below = [member for member in self.members if self._size(member) < target]
        above = [member for member in self.members if self._size(member) >= target]
        return [*below[-1:], *above[:1]]

    def ratio_at(self, target: float, ratio: Callable[[FamilyMember], float]) -> float:
        """Return the family's value of `ratio`, such as d_ff / d_model, for a model of `target` parameters.

        Between two members, the ratio is interpolated logarithmically. A model that is smaller or larger than all
        members has the ratio of the closest member.
        """
        first, last = (self.neighbors(target) * 2)[:2]
        low, high = self._size(first), self._size(last)
        share = math.log(target / low) / math.log(high / low) if low < high else 0.0
        return ratio(first) ** (1 - share) * ratio(last) ** share

    def _size(self, member: FamilyMember) -> int:
        return getattr(member.counted, self.by)


def family_of(like: str, by: SizeMeasure, atlas: Sequence[PublishedModel], *, mixtures: bool) -> Family:
    """Return the family called `like`. The name of a preset gives a family with that model only.

    If the family has dense models and mixtures of experts, only the dense models are used, or only the mixtures if
    `mixtures` is true. Raise UserError if the name is unknown or no model can be scaled.
    """
    scalable = [member for member in _named(like, atlas) if can_be_scaled(member)]
    if not scalable:
        raise UserError(f"--like is {like}, which cannot be scaled; {CAN_BE_SCALED}")
    kinds = {member.is_mixture for member in scalable}
    if mixtures and True not in kinds:
        raise UserError(
            f"--active needs a mixture of experts, but --like is {like}; allowed: qwen3, deepseek-v2 and other mixtures"
        )
    use_mixtures = mixtures or False not in kinds
    members = [member for member in scalable if member.is_mixture == use_mixtures]
    return Family(sorted(members, key=lambda member: getattr(member.counted, by)), by)


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
        raise UserError(
            f"--like is {like}; archlab has only facts about this model and cannot build it; "
            "`archlab list presets` shows all presets"
        )
    known = {*presets(), *(entry.family for entry in atlas)} - set(facts())
    raise UserError(
        f"--like is {like!r}, which is neither a family nor a preset"
        f"{nearest(like, known) or '; `archlab list presets` shows all presets'}"
    )


def can_be_scaled(member: FamilyMember) -> bool:
    """Return whether every layer has an MLP and attention with the same heads, no layer has a recurrent mixer, and an
    encoder has as many layers as the decoder, of the same widths."""
    encoder = encoder_of(member.config.model)
    layers = (*member.layers, *(layer_configs(encoder) if encoder else ()))
    complete = all(
        isinstance(layer.mixer, Absent)
        and not isinstance(layer.attention, Absent)
        and not isinstance(layer.mlp, Absent)
        for layer in layers
    )
    if not complete or len({(x.n_heads, x.query_width) for x in words.attentions(layers)}) > 1:
        return False
    return encoder is None or (
        encoder.n_layers == member.n_layers and words.mlp_width(layer_configs(encoder)) == member.d_ff
    )


def nearest_published(proposed: FamilyMember, atlas: Sequence[PublishedModel]) -> PublishedModel:
    """Return the model of the atlas whose shape is closest. The closest model to an encoder is an encoder, and the
    closest one to an encoder-decoder is an encoder-decoder.

    Width, depth and MLP width have weight 1, and the vocabulary size has weight 0.25.
    """
    models = [(entry, FamilyMember(entry.preset, entry.config)) for entry in atlas]
    alike = [(entry, model) for entry, model in models if can_be_scaled(model) and _is_like(model, proposed)]
    distances = [(_distance(model, proposed), entry) for entry, model in alike]
    return min(distances, key=lambda pair: pair[0])[1]


def _is_like(first: FamilyMember, second: FamilyMember) -> bool:
    kinds = [(words.is_encoder(x.layers), x.config.model.encoder is None) for x in (first, second)]
    return kinds[0] == kinds[1]


def _distance(first: FamilyMember, second: FamilyMember) -> float:
    shapes: Iterable[tuple[float, float, float]] = (
        (first.d_model, second.d_model, 1),
        (first.n_layers, second.n_layers, 1),
        (first.d_ff, second.d_ff, 1),
        (first.config.model.vocab_size, second.config.model.vocab_size, 0.25),
    )
    mixed = first.is_mixture != second.is_mixture
    return math.hypot(*(weight * math.log(a / b) for a, b, weight in shapes)) + mixed
