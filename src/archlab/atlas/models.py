"""The atlas of published architectures: what is known of each model, its config, and a row of numbers and words."""

import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from pydantic import computed_field

from archlab.atlas import words
from archlab.atlas.tricks import tricks
from archlab.config.about import About
from archlab.config.components.multi_head import MultiHead
from archlab.config.core.base import Base
from archlab.config.io import build_config, facts, presets, read_entry
from archlab.config.layers import layer_configs
from archlab.config.schema import Config
from archlab.pricing.params import parameters

_SIZE = re.compile(r"-((\d+x)?a?\d+(\.\d+)?[bm]|mini|small|medium|base|large|xl|xxl|air|lite|maverick|scout)\b.*")
"""In a preset's name: its size, and what stands behind it."""


@dataclass(frozen=True)
class PublishedModel:
    """One model of the atlas."""

    preset: str
    """Name of the preset, as `archlab show` takes it."""
    about: About
    config: Config
    """The model; of one that cannot be built, its decoder block as far as the schema goes."""

    @property
    def family(self) -> str:
        """Name of the sizes that were released together: the preset's name up to the size."""
        return _SIZE.sub("", self.preset)


def entries() -> list[PublishedModel]:
    """All of them by year, then by family, version and size."""
    found = [_entry(name, file) for name, file in {**presets(), **facts()}.items()]
    return sorted(filter(None, found), key=lambda entry: (entry.about.year, _natural(entry.preset)))


def _entry(name: str, file: Traversable) -> PublishedModel | None:
    """None for a preset of our own, which says nothing about a publication."""
    about, raw = read_entry(file)
    return PublishedModel(name, about, build_config(raw, (), str(file))) if about else None


def _natural(name: str) -> list[tuple[float, str]]:
    """Numbers in a name compare as numbers: 8b before 70b."""
    return [(float(number or 0), word) for number, word in re.findall(r"(\d+\.?\d*)|([^\d]+)", name)]


class AtlasRow(Base):
    """One model: numbers and words computed from its resolved layers, and what is known about it."""

    preset: str
    family: str
    """Name of the sizes that were released together."""
    about: About
    buildable: bool
    parameters: int | None
    """Counted from the config; null where that is not the whole model."""
    active_parameters: int | None
    """Of these, how many one token makes use of; null as `parameters`."""
    norm: str
    placement: str
    block: str
    activation: str
    gated: bool | None
    """Whether its MLPs are; null: no MLP."""
    position: str
    feed_forward: str
    mixers: str
    heads: str
    reach: str
    biases: str
    tied: bool
    n_heads: int | None
    """Query heads of the first layer that has attention; null where none has."""
    n_kv_heads: int | None
    """Its key and value heads; null for latent attention, too, where all are made from one vector."""
    head_dim: int | None
    """Width of a query."""
    d_model: int
    n_layers: int
    d_ff: int | None
    """Width of one matrix; of a mixture, of all experts together that a token passes through. null: no MLP."""
    n_experts: int | None
    """Experts that a layer chooses from; null without mixtures."""
    n_active_experts: int | None
    """Of these, how many each token passes through."""
    vocab_size: int
    context: int | None
    """Tokens of the longest text it is published for; null where that is a stand-in."""
    tricks: list[str]

    @computed_field
    @property
    def size(self) -> int | None:
        """Parameters to show: as published where known, for all of the model; else as counted."""
        return self.about.published_parameters or self.parameters

    @computed_field
    @property
    def heads_over_d(self) -> float | None:
        """Width of all queries of a layer together over that of the stream."""
        return None if self.n_heads is None or self.head_dim is None else self.n_heads * self.head_dim / self.d_model

    @computed_field
    @property
    def d_ff_over_d(self) -> float | None:
        """Width of the MLP over that of the stream."""
        return None if self.d_ff is None else self.d_ff / self.d_model

    @computed_field
    @property
    def d_over_layers(self) -> float:
        """Aspect ratio."""
        return self.d_model / self.n_layers


def rows() -> list[AtlasRow]:
    """The whole atlas, by year."""
    return [row(entry) for entry in entries()]


def row(entry: PublishedModel) -> AtlasRow:
    """One entry's row."""
    model, about = entry.config.model, entry.about
    layers = layer_configs(model)
    counted = parameters(model) if about.buildable else None
    attention = next(iter(words.attentions(layers)), None)
    mixture = next(iter(words.mixtures(layers)), None)
    return AtlasRow(
        preset=entry.preset,
        family=entry.family,
        about=about,
        buildable=about.buildable,
        parameters=counted and counted.total,
        active_parameters=counted and counted.active,
        norm=words.norm(layers),
        placement=words.placement(layers),
        block=words.block(layers),
        activation=words.activation(layers),
        gated=words.gated(layers),
        position=words.position(layers),
        feed_forward=words.feed_forward(layers),
        mixers=words.mixers(layers),
        heads=words.heads(layers),
        reach=words.reach(layers),
        biases=words.biases(layers),
        tied=model.head.tied,
        n_heads=attention and attention.n_heads,
        n_kv_heads=attention.n_kv_heads if isinstance(attention, MultiHead) else None,
        head_dim=attention and attention.query_width,
        d_model=model.d_model,
        n_layers=model.n_layers,
        d_ff=words.mlp_width(layers),
        n_experts=mixture and mixture.experts,
        n_active_experts=mixture and mixture.active,
        vocab_size=model.vocab_size,
        context=None if about.doubts("max_seq_len") else model.max_seq_len,
        tricks=tricks(entry.config, about),
    )
