"""The evolution of the architecture: one row per published model, computed from its resolved layers."""

import re

from pydantic import computed_field

from archlab.atlas import words
from archlab.atlas.entries import Entry, entries
from archlab.atlas.tricks import tricks
from archlab.config.about import About
from archlab.config.base import Base
from archlab.config.layers import layer_configs
from archlab.cost.params import parameters

_SIZE = re.compile(r"-(\d+(\.\d+)?[bm]|mini|small|medium|base|large|xl|xxl)\b.*")
"""In a preset's name: its size, and what stands behind it."""


class Row(Base):
    """One model; numbers and words that follow from its config, and what is known about it."""

    preset: str
    about: About
    buildable: bool
    parameters: int | None
    """Counted from the config; null where that is not the whole model."""
    norm: str
    placement: str
    block: str
    activation: str
    position: str
    heads: str
    reach: str
    biases: str
    tied: bool
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    n_layers: int
    d_ff: int
    """Width of one matrix."""
    vocab_size: int
    tricks: list[str]

    @computed_field
    @property
    def family(self) -> str:
        """What its makers released together in several sizes: the preset's name up to the size."""
        return _SIZE.sub("", self.preset)

    @computed_field
    @property
    def size(self) -> int | None:
        """Parameters to show: as published where known, for all of the model; else as counted."""
        return self.about.published_parameters or self.parameters

    @computed_field
    @property
    def d_ff_over_d(self) -> float:
        """Width of the MLP over that of the stream."""
        return self.d_ff / self.d_model

    @computed_field
    @property
    def d_over_layers(self) -> float:
        """Aspect ratio."""
        return self.d_model / self.n_layers


def rows() -> list[Row]:
    """The whole atlas, by year."""
    return [row(entry) for entry in entries()]


def row(entry: Entry) -> Row:
    """One entry's row."""
    model, about = entry.config.model, entry.about
    layers = layer_configs(model)
    heads = layers[0].multi_head
    return Row(
        preset=entry.preset,
        about=about,
        buildable=about.buildable,
        parameters=parameters(model).total if about.buildable else None,
        norm=words.norm(layers),
        placement=words.placement(layers),
        block=words.block(layers),
        activation=words.activation(layers),
        position=words.position(layers),
        heads=words.heads(layers),
        reach=words.reach(layers),
        biases=words.biases(layers),
        tied=model.head.tied,
        n_heads=heads.n_heads,
        n_kv_heads=heads.n_kv_heads,
        head_dim=heads.head_dim,
        d_model=model.d_model,
        n_layers=model.n_layers,
        d_ff=layers[0].dense.d_ff,
        vocab_size=model.vocab_size,
        tricks=tricks(entry.config, about),
    )
