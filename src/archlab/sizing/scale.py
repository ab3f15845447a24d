"""A published model at another width and depth."""

import math
from dataclasses import dataclass
from functools import cached_property

from archlab.config.check import validate
from archlab.config.core.merge import Raw, expand
from archlab.config.io import overlay
from archlab.config.layers import resolve
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.review.shape_rule import LARGE
from archlab.sizing.family import FamilyMember

PROPOSED = (
    "d_model", "n_layers", "attention.n_heads", "attention.n_kv_heads", "attention.head_dim", "mlp.d_ff",
    "mlp.shared.d_ff",
)  # fmt: skip
"""Fields of `model` that a proposal decides."""


@dataclass(frozen=True)
class Heads:
    """Of attention."""

    n: int
    """For queries."""
    n_kv: int | None
    """None: the attention is latent, and keeps its widths."""
    dim: int

    @property
    def is_grouped(self) -> bool:
        """Whether several query heads have one key head."""
        return self.n_kv is not None and self.n_kv < self.n

    def like(self, n: int, dim: int) -> "Heads":
        """Others, with as many KV heads as divide their number."""
        if self.n_kv is None:
            return Heads(n, None, dim)
        wanted = self.n_kv if self.is_grouped else n
        divisors = (kv for kv in range(1, n + 1) if n % kv == 0)
        return Heads(n, min(divisors, key=lambda kv: abs(math.log(kv / wanted))), dim)

    def uneven(self, devices: int) -> int:
        """Whether they cannot be cut over devices, counted for query and for KV heads."""
        return sum(n % devices > 0 and (devices % n > 0 or n == self.n) for n in (self.n, self.n_kv or self.n))


@dataclass(frozen=True)
class Shape:
    """What a proposal decides."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None
    """None: the attention is latent."""
    head_dim: int | None
    """None: the attention is latent, and keeps its widths."""
    width: int
    """Of one matrix of the MLP, or of one expert; other MLPs of the model are as much wider or narrower."""


@dataclass(frozen=True)
class ScalableModel:
    """A model, and the fields that are to stay as they are."""

    member: FamilyMember
    raw: Raw
    """As its file has it, with the user's changes."""

    @cached_property
    def model(self) -> ModelConfig:
        """With derived widths written out."""
        return resolve(self.member.config.model)

    @cached_property
    def heads(self) -> Heads:
        """Its own."""
        attention = self.member.multi_head
        return Heads(self.member.n_heads, attention and attention.n_kv_heads, self.member.head_dim)

    @property
    def width(self) -> int:
        """What `Shape.width` is of the template itself."""
        return self.model.mlp.d_ff  # pyright: ignore[reportAttributeAccessIssue, reportReturnType] - a dense MLP or experts

    @property
    def shallowest(self) -> int:
        """Layers from which on every kind comes up."""
        pattern = self.pattern(self.model.n_layers)
        return max(map(pattern.index, set(pattern))) + 1

    def pattern(self, n_layers: int) -> list[str]:
        """The kind of each layer of a model of that depth: the cycle, or, where the template names every layer, its
        layers in proportion."""
        layers = self.model.layers
        if layers is None:
            return ["layer"] * n_layers
        known = len(layers.pattern)
        names_every_layer = known == self.model.n_layers
        return [layers.pattern[i * known // n_layers if names_every_layer else i % known] for i in range(n_layers)]

    def config(self, shape: Shape) -> Config:
        """The template in that shape."""
        return validate(Config, overlay(self.raw, self.change(shape), Config), self.member.name)

    def change(self, shape: Shape) -> Raw:
        """Dotted field -> value: all that differs from the template."""
        attention = {"n_heads": shape.n_heads, "n_kv_heads": shape.n_kv_heads, "head_dim": shape.head_dim}
        changed: Raw = {"model.d_model": shape.d_model, "model.n_layers": shape.n_layers}
        changed |= {f"model.attention.{name}": value for name, value in attention.items() if value is not None}
        changed["model.mlp.d_ff"] = shape.width
        if shared := getattr(self.model.mlp, "shared", None):
            changed["model.mlp.shared.d_ff"] = self._scaled(shared.d_ff, shape)
        return changed | self._layers(shape)

    def _layers(self, shape: Shape) -> Raw:
        """The layer kinds' own widths, and a pattern that names every layer, for this depth."""
        layers = self.model.layers
        if layers is None:
            return {}
        kinds = {kind: expand(change).get("mlp", {}).get("d_ff") for kind, change in layers.kinds.items()}
        changed: Raw = {f"model.layers.{k}.mlp.d_ff": self._scaled(w, shape) for k, w in kinds.items() if w is not None}
        if len(layers.pattern) == self.model.n_layers != shape.n_layers:
            changed["model.layers.pattern"] = self.pattern(shape.n_layers)
        return changed

    def _scaled(self, width: int, shape: Shape) -> int:
        return rounded(width * shape.width / self.width, shape.d_model)


def rounded(width: float, d_model: int) -> int:
    """To a width that an MLP beside a stream of `d_model` may have."""
    step = step_at(d_model)
    return max(step, round(width / step) * step)


def step_at(d_model: int) -> int:
    """Between the widths that an MLP beside a stream of `d_model` may have."""
    return 64 if d_model >= LARGE else 8
