"""Scaling of a published model to another width and depth."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice

from archlab.config.check import validate
from archlab.config.core.merge import Raw, expand
from archlab.config.identity import flatten
from archlab.config.io import overlay
from archlab.config.layers import resolve
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.review.shape_rule import LARGE
from archlab.sizing.family import FamilyMember

_WIDTHS = ("d_ff", "shared.d_ff", "latent.width")
"""Fields of an MLP that are scaled."""

PROPOSED = (
    "d_model", "n_layers", "attention.n_heads", "attention.n_kv_heads", "attention.head_dim",
    *(f"mlp.{field}" for field in _WIDTHS),
)  # fmt: skip
"""Fields of `model` that a proposal sets."""


@dataclass(frozen=True)
class Heads:
    """Number and width of attention heads."""

    n: int
    """Number of query heads."""
    n_kv: int | None
    """Number of key/value heads. None if the attention is latent; its widths then stay the same."""
    dim: int

    @property
    def is_grouped(self) -> bool:
        return self.n_kv is not None and self.n_kv < self.n

    def like(self, n: int, dim: int) -> "Heads":
        """Return `n` heads of width `dim`.

        The number of KV heads divides `n`. With grouped queries, it stays about the same.
        """
        if self.n_kv is None:
            return Heads(n, None, dim)
        ideal = self.n_kv if self.is_grouped else n
        divisors = (kv for kv in range(1, n + 1) if n % kv == 0)
        return Heads(n, min(divisors, key=lambda kv: abs(math.log(kv / ideal))), dim)

    def uneven(self, devices: int) -> int:
        """Return how many of the two numbers (query heads, KV heads) cannot be divided evenly among devices: 0, 1 or
        2."""
        return sum(n % devices > 0 and (devices % n > 0 or n == self.n) for n in (self.n, self.n_kv or self.n))


@dataclass(frozen=True)
class Shape:
    """Sizes that a proposal sets."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None
    """Number of key/value heads. None if the attention is latent."""
    head_dim: int | None
    """Width of a head. None if the attention is latent; its widths then stay the same."""
    width: int
    """Width (d_ff) of the MLP, or of one expert. The other MLPs of the model are scaled by the same factor."""


@dataclass(frozen=True)
class ScalableModel:
    """Model to be scaled. Fields that do not depend on the shape stay the same."""

    member: FamilyMember
    raw: Raw
    """Config as in its file, with the user's changes applied."""

    @cached_property
    def model(self) -> ModelConfig:
        """Model config with all derived widths filled in."""
        return resolve(self.member.config.model)

    @cached_property
    def heads(self) -> Heads:
        attention = self.member.multi_head
        return Heads(self.member.n_heads, attention and attention.n_kv_heads, self.member.head_dim)

    @property
    def width(self) -> int:
        """Width (d_ff) of the MLP, or of one expert, in the unscaled model."""
        return self.model.mlp.d_ff  # pyright: ignore[reportAttributeAccessIssue, reportReturnType] - a dense MLP or experts

    @property
    def shallowest(self) -> int:
        """Smallest number of layers with which every layer kind occurs."""
        pattern = self.pattern(self.model.n_layers)
        return max(map(pattern.index, set(pattern))) + 1

    def pattern(self, n_layers: int) -> list[str]:
        """Return the kind of each layer of a model with `n_layers` layers.

        The pattern is repeated, unless it lists every layer of the unscaled model. If such a pattern begins with a few
        layers and then repeats a shorter pattern, the shorter pattern is repeated (ModernBERT). Otherwise, the pattern
        is stretched to `n_layers` layers.
        """
        layers = self.model.layers
        if layers is None:
            return ["layer"] * n_layers
        known = len(layers.pattern)
        names_every_layer = known == self.model.n_layers
        if names_every_layer and (parts := _first_and_repeated(layers.pattern)):
            first, repeated = parts
            return [*first, *islice(cycle(repeated), max(0, n_layers - len(first)))][:n_layers]
        return [layers.pattern[i * known // n_layers if names_every_layer else i % known] for i in range(n_layers)]

    def config(self, shape: Shape) -> Config:
        return validate(Config, overlay(self.raw, self.change(shape), Config), self.member.name)

    def change(self, shape: Shape) -> Raw:
        attention = {"n_heads": shape.n_heads, "n_kv_heads": shape.n_kv_heads, "head_dim": shape.head_dim}
        changed: Raw = {"model.d_model": shape.d_model, "model.n_layers": shape.n_layers}
        changed |= {f"model.attention.{name}": value for name, value in attention.items() if value is not None}
        of_mlp = flatten(self.model.mlp.model_dump(mode="json"))
        changed |= {f"model.mlp.{field}": width for field, width in self._widths(of_mlp, shape)}
        changed["model.mlp.d_ff"] = shape.width
        if self.model.encoder:
            changed["model.encoder.n_layers"] = shape.n_layers
        return changed | self._layers(shape)

    def _layers(self, shape: Shape) -> Raw:
        layers = self.model.layers
        if layers is None:
            return {}
        kinds = {kind: flatten(expand(change).get("mlp", {})) for kind, change in layers.kinds.items()}
        changed: Raw = {
            f"model.layers.{kind}.mlp.{field}": width
            for kind, of_mlp in kinds.items()
            for field, width in self._widths(of_mlp, shape)
        }
        if len(layers.pattern) == self.model.n_layers != shape.n_layers:
            changed["model.layers.pattern"] = self.pattern(shape.n_layers)
        return changed

    def _widths(self, of_mlp: Raw, shape: Shape) -> Iterator[tuple[str, int]]:
        """Yield the fields of an MLP that are widths, each with its scaled width."""
        for field in _WIDTHS:
            if width := of_mlp.get(field):
                yield field, rounded(width * shape.width / self.width, shape.d_model)


def _first_and_repeated(pattern: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the first layers and the layers that repeat after them, or None if a pattern has no such parts.

    At least two layers repeat, at least twice, and there are no more first layers than repeated ones.
    """
    for period in range(2, len(pattern) // 3 + 1):
        for start in range(period + 1):
            rest = pattern[start:]
            if len(set(rest)) > 1 and rest[period:] == rest[:-period]:
                return pattern[:start], rest[:period]
    return None


def rounded(width: float, d_model: int) -> int:
    step = step_at(d_model)
    return max(step, round(width / step) * step)


def step_at(d_model: int) -> int:
    """Return the step between the MLP widths that are allowed at this `d_model`."""
    return 64 if d_model >= LARGE else 8
