"""Atlas of published architectures: facts about each model, its config, and a table row of numbers and words."""

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
"""Size in a preset's name, and everything after it."""


@dataclass(frozen=True)
class PublishedModel:
    """One model of the atlas."""

    preset: str
    """Name of the preset, as used in `archlab show`."""
    about: About
    config: Config
    """Config of the model. For a model that cannot be built, it describes the decoder block as far as possible."""

    @property
    def family(self) -> str:
        """Name shared by models that were released together in several sizes: the preset's name without the size."""
        return _SIZE.sub("", self.preset)


def entries() -> list[PublishedModel]:
    """Return all published models, sorted by year, then by family, version and size."""
    models = [_entry(name, file) for name, file in {**presets(), **facts()}.items()]
    return sorted(filter(None, models), key=lambda entry: (entry.about.year, _natural(entry.preset)))


def _entry(name: str, file: Traversable) -> PublishedModel | None:
    """Return the published model; None for one of archlab's own presets, which have no publication."""
    about, raw = read_entry(file)
    return PublishedModel(name, about, build_config(raw, (), str(file))) if about else None


def _natural(name: str) -> list[tuple[float, str]]:
    """Return a sort key in which numbers compare as numbers: 8b before 70b."""
    return [(float(number or 0), word) for number, word in re.findall(r"(\d+\.?\d*)|([^\d]+)", name)]


class AtlasRow(Base):
    """Table row of one model: numbers and words from its resolved layers, and facts about it."""

    preset: str
    family: str
    """Name shared by models that were released together in several sizes."""
    about: About
    buildable: bool
    parameters: int | None
    """Number of parameters, counted from the config. null if the config is not the whole model."""
    active_parameters: int | None
    """Number of parameters that one token uses. null if `parameters` is null."""
    norm: str
    placement: str
    block: str
    activation: str
    gated: bool | None
    """Whether all MLPs are gated; null if there is no MLP."""
    position: str
    feed_forward: str
    mixers: str
    heads: str
    reach: str
    biases: str
    tied: bool
    n_heads: int | None
    """Number of query heads in the first layer with attention; null if there is none."""
    n_kv_heads: int | None
    """Number of key/value heads in that layer. It is also null for latent attention, which has one shared vector."""
    head_dim: int | None
    """Width of a query."""
    d_model: int
    n_layers: int
    d_ff: int | None
    """Width of one MLP matrix, or in a mixture the total width of all experts of a token. null if there is no MLP."""
    n_experts: int | None
    """Number of experts that a layer chooses from; null without mixtures."""
    n_active_experts: int | None
    """Number of experts that each token passes through; null without mixtures."""
    vocab_size: int
    context: int | None
    """Longest published sequence length in tokens; null if the config has only a placeholder."""
    tricks: list[str]

    @computed_field
    @property
    def size(self) -> int | None:
        """Number of parameters to show: the published number of the whole model if known, otherwise the counted one."""
        return self.about.published_parameters or self.parameters

    @computed_field
    @property
    def heads_over_d(self) -> float | None:
        """Total width of all query heads of a layer, divided by d_model."""
        return None if self.n_heads is None or self.head_dim is None else self.n_heads * self.head_dim / self.d_model

    @computed_field
    @property
    def d_ff_over_d(self) -> float | None:
        """Width of the MLP, divided by d_model."""
        return None if self.d_ff is None else self.d_ff / self.d_model

    @computed_field
    @property
    def d_over_layers(self) -> float:
        """Aspect ratio: d_model / n_layers."""
        return self.d_model / self.n_layers


def rows() -> list[AtlasRow]:
    """Return the rows of the whole atlas, sorted by year."""
    return [row(entry) for entry in entries()]


def row(entry: PublishedModel) -> AtlasRow:
    """Return the row of a published model."""
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
