"""Base classes of the components of a layer. Each component's config states its own costs.

Counts, costs, caches and descriptions add up what components return, and know no component by name.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator

from archlab.config.components.dropout import Dropout
from archlab.config.components.norm import BlockNorm
from archlab.config.components.position import Position
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass, matrix_flops
from archlab.config.core.base import Natural
from archlab.config.core.registry import Registered, Section
from archlab.errors import UserError

RoleName = Literal["embedding", "input", "narrow", "output", "head", "convolution", "constant", "output_bias"]
"""Purpose of a parameter. `model/roles.py` says how each role is initialized and trained."""


@dataclass(frozen=True)
class Site:
    """Surroundings of a component: the facts about its layer that its costs depend on."""

    d_model: int
    norm: BlockNorm
    """Norm of the layer. Inner norms are of the same kind."""
    position: Position
    dropout: Dropout = field(default_factory=Dropout)
    kernel: str = "auto"
    """Name of the attention kernel (model/kernels.py)."""


class StateTensor(NamedTuple):
    """Tensor that a component keeps between passes, for one sequence."""

    name: str
    shape: tuple[Natural, ...]
    """Shape without the batch axis."""
    per_token: bool = False
    """Whether it has one row per token that may still be seen. It then grows with the text, like keys and values."""
    float32: bool = False
    """Whether it is stored in float32 at least, whatever the dtype of the other tensors."""

    def n_bytes(self, bytes_each: int) -> int:
        """Return the bytes for one sequence if a number takes `bytes_each` bytes. Float32 tensors always take 4 per
        number."""
        return math.prod(self.shape) * (FLOAT32_BYTES if self.float32 else bytes_each)


def divide_evenly(n: int, tensor: int, what: str) -> int:
    """Return `n` divided by `tensor`. Raise UserError if it does not divide evenly."""
    if n % tensor:
        raise UserError(f"{what}: {n} cannot be divided evenly among {tensor} devices")
    return n // tensor


def _part(name: str) -> str:
    if name not in PARTS:
        raise ValueError(", ".join(PARTS))
    return name


def _own(operation: Operation) -> Operation:
    if operation.part in _OF_THE_MODEL:
        raise ValueError(f"any part except {', '.join(_OF_THE_MODEL)}, which belong to the model")
    return operation


PARTS = ("norms", "positions", "attention", "mixer", "mlp")
"""Rows of the table of parameters that a component may add to."""

_OF_THE_MODEL = ("embedding", "head", "stream", "loss", "optimiser", "total")
"""Rows of the table of FLOPs that belong to the model, so that no component may add to them."""

PartName = Annotated[str, AfterValidator(_part)]
OwnOperation = Annotated[Operation, AfterValidator(_own)]


class Component(Registered):
    """One part of a layer. It reads the residual stream, and its output is added to the stream."""

    def resolve(self, d_model: int) -> Self:
        """Return the same component with every `Derived` field filled in. Resolving twice changes nothing."""
        return self

    @property
    def score_heads(self) -> int:
        """Number of heads that compare queries with keys. A position encoding can then add to their scores."""
        return 0

    def describe(self) -> dict[str, str]:
        """Return headings and short texts for a table of layers. By default: the kind and all fields."""
        fields = (f"{name} {value}" for name, value in self if name != "kind")
        return {self.section: " ".join([self.kind, *fields])}

    @abstractmethod
    def parameters(self, site: Site) -> dict[PartName, Natural]:
        """Return the number of parameters per row of the table of parameters: `norms`, `positions` and the component's
        own row."""

    def roles(self) -> tuple[RoleName, ...]:
        """Return the roles of its parameters. `constant` is left out, because any component may have constants."""
        return ("input", "output")

    def vectors(self, site: Site) -> int:
        """Return the number of parameters outside weight matrices: biases, convolutions, decay rates.

        Norms and positions are not counted.
        """
        return 0

    def in_matrices(self, site: Site) -> int:
        """Return the number of parameters in weight matrices. An optimizer may update these differently (Muon)."""
        parts = self.parameters(site)
        return sum(parts.values()) - parts.get("norms", 0) - parts.get("positions", 0) - self.vectors(site)

    def active_parameters(self, site: Site) -> int:
        """Return the number of parameters that one token uses."""
        return sum(self.parameters(site).values())

    def share(self, tensor: int) -> Self:
        """Return the part of this component on each of `tensor` devices (tensor parallelism, Shoeybi 2019).

        It is a component of the same kind with fewer heads or a narrower middle. The outputs of all parts add up to the
        output of the whole. Raise UserError if it cannot be divided this way.
        """
        raise UserError(f"{self.kind}: it cannot be divided among devices; allowed: tensor=1")

    @abstractmethod
    def work(self, site: Site, model_pass: Pass) -> Iterator[OwnOperation]:
        """Yield the operations of this pass. Every parameter that the pass uses must be among the weights of an
        operation."""

    def flops(self, site: Site, model_pass: Pass) -> Counter[str]:
        """Return the FLOPs of its matrix products and convolutions in this pass, by row of the table of FLOPs."""
        return matrix_flops(self.work(site, model_pass))

    @abstractmethod
    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return the tensors that it keeps between passes over a text of up to `capacity` tokens."""

    def kept_bytes(self, site: Site, model_pass: Pass) -> int:
        """Return the bytes that this pass reads from the cache, including those of its own tokens. 0 without a
        cache."""
        kept = sum(tensor.n_bytes(model_pass.bytes_each) for tensor in self.state(site, model_pass.context))
        return model_pass.texts * kept if model_pass.is_cached else 0


class Attention(Component):
    """Attention of a layer, or none."""

    section: ClassVar[Section] = "attention"
    default_kind: ClassVar[str | None] = "multihead"


class Mixer(Component):
    """Recurrent mixer next to attention or instead of it, or none. Its state has a fixed size."""

    section: ClassVar[Section] = "mixer"
    default_kind: ClassVar[str | None] = "none"


class MLP(Component):
    """MLP of a layer, or none."""

    section: ClassVar[Section] = "mlp"
    default_kind: ClassVar[str | None] = "gated"

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return nothing, because an MLP sees one token at a time."""
        return ()


class Absent(Component):
    """Placeholder for a branch that the layer lacks. It counts zero in every row."""

    part: ClassVar[str]
    """Row of such a branch in the table of parameters."""
    flop_parts: ClassVar[tuple[str, ...]]
    """Rows of such a branch in the table of FLOPs."""

    def describe(self) -> dict[str, str]:
        return {}

    def parameters(self, site: Site) -> dict[str, int]:
        return {self.part: 0}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        return ()

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        return (Operation("products", part, 0.0) for part in self.flop_parts)


class NoAttention(Absent, Attention):
    """No attention in the layer."""

    kind: Literal["none"] = "none"

    part: ClassVar[str] = "attention"
    flop_parts: ClassVar[tuple[str, ...]] = ("projections", "scores")


class NoMixer(Absent, Mixer):
    """No recurrent mixer in the layer."""

    kind: Literal["none"] = "none"

    part: ClassVar[str] = "mixer"
    flop_parts: ClassVar[tuple[str, ...]] = ("mixer",)


class NoMLP(Absent, MLP):
    """No MLP in the layer."""

    kind: Literal["none"] = "none"

    part: ClassVar[str] = "mlp"
    flop_parts: ClassVar[tuple[str, ...]] = ("mlp",)


_C = TypeVar("_C", bound=Component)


def expect(config: Component, schema: type[_C], section: str, where: str, allowed: str) -> _C:
    """Return the config as an instance of `schema`. Raise UserError if it is of another kind."""
    if isinstance(config, schema):
        return config
    raise UserError(f"model.{section}.kind: {config.kind} in {where}; allowed here: {allowed}")
