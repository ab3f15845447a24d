"""Atlas of published architectures: facts about each model, its config, and its table row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources.abc import Traversable

from pydantic import Field, computed_field

from archlab.atlas import words
from archlab.atlas.config_fields import Value, config_fields
from archlab.atlas.tricks import tricks
from archlab.config.about import About
from archlab.config.components.multi_head import MultiHead
from archlab.config.core.base import Base
from archlab.config.io import build_config, facts, presets, read_entry
from archlab.config.layers import layer_configs
from archlab.config.schema import Config
from archlab.pricing.params import parameters

_SIZE = re.compile(r"-((\d+x)?a?\d+(\.\d+)?[bm]|mini|small|medium|base|big|large|xl|xxl|air|lite|maverick|scout)\b.*")


@dataclass(frozen=True)
class PublishedModel:
    """Published model in the atlas."""

    preset: str
    """Name of the preset, as used in `archlab show`."""
    about: About
    config: Config
    """Config of the model.

    If archlab cannot build the model, the config describes only the decoder block, as far as possible.
    """

    @property
    def family(self) -> str:
        """Name shared by models that were released together in several sizes.

        It is the name of the preset without the size.
        """
        return _SIZE.sub("", self.preset)


def entries() -> list[PublishedModel]:
    """Return all models with a published architecture, sorted by year, then by family, version and size."""
    models = [_entry(name, file) for name, file in {**presets(), **facts()}.items()]
    return sorted(filter(None, models), key=lambda entry: (entry.about.year, _natural(entry.preset)))


def unpublished() -> dict[str, About]:
    """Return the facts about well-known models whose architecture is not published, by name of the file."""
    known = {name: read_entry(file) for name, file in facts().items()}
    return {name: about for name, (about, raw) in known.items() if about and not raw}


def _entry(name: str, file: Traversable) -> PublishedModel | None:
    """Return the published model, or None for archlab's own presets and for models without a published architecture."""
    about, raw = read_entry(file)
    return PublishedModel(name, about, build_config(raw, (), str(file))) if about and raw else None


def _natural(name: str) -> list[tuple[float, str]]:
    """Return a sort key that compares numbers in a text by value: 8b before 70b."""
    return [(float(number or 0), word) for number, word in re.findall(r"(\d+\.?\d*)|([^\d]+)", name)]


class AtlasRow(Base):
    """Table row of one model: numbers and words computed from its resolved layers, and facts about it."""

    preset: str
    family: str
    """Name shared by models that were released together in several sizes."""
    about: About
    buildable: bool
    parameters: int | None
    """Number of parameters, counted from the config. null if the config describes only a part of the model."""
    active_parameters: int | None
    """Number of parameters that one token uses. null if `parameters` is null."""
    norm: str
    placement: str
    block: str
    activation: str
    gated: bool | None
    """Whether all MLPs are gated. null if there is no MLP."""
    position: str
    feed_forward: str
    mixers: str
    heads: str
    reach: str
    biases: str
    tied: bool
    n_heads: int | None
    """Number of query heads in the first layer with attention. null if there is no such layer."""
    n_kv_heads: int | None
    """Number of key/value heads in the first layer with attention.

    null if there is no such layer, or if it has latent attention, in which all heads share one vector.
    """
    head_dim: int | None
    """Width of a query head in the first layer with attention. null if there is no such layer."""
    d_model: int
    n_layers: int
    d_ff: int | None
    """Hidden width of the MLP. null if there is no MLP.

    For a mixture, the total hidden width of all experts that a token uses.
    """
    n_experts: int | None
    """Number of experts per layer that the router chooses from. null without mixtures."""
    n_active_experts: int | None
    """Number of experts per layer that each token uses. null without mixtures."""
    vocab_size: int
    context: int | None
    """Longest published sequence length in tokens. null if the config has only a placeholder."""
    tricks: list[str]
    config: Config = Field(exclude=True, repr=False)

    @cached_property
    def config_fields(self) -> Mapping[str, Value]:
        """Value of each field of the model, by its dotted name."""
        return config_fields(self.config.model)

    @computed_field
    @property
    def size(self) -> int | None:
        """Parameter count to display: the published count of the whole model if known, otherwise `parameters`."""
        return self.about.published_parameters or self.parameters

    @computed_field
    @property
    def heads_over_d(self) -> float | None:
        """Total width of all query heads of a layer, divided by d_model."""
        return None if self.n_heads is None or self.head_dim is None else self.n_heads * self.head_dim / self.d_model

    @computed_field
    @property
    def d_ff_over_d(self) -> float | None:
        """Width of the MLP (`d_ff`), divided by d_model."""
        return None if self.d_ff is None else self.d_ff / self.d_model

    @computed_field
    @property
    def d_over_layers(self) -> float:
        return self.d_model / self.n_layers


def rows() -> list[AtlasRow]:
    return [row(entry) for entry in entries()]


def row(entry: PublishedModel) -> AtlasRow:
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
        config=entry.config,
    )
