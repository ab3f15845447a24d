"""What a layer is made of: the base of every component's config, which says itself what the component costs.

Counts, costs, caches and descriptions sum over components and know none of them.
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
"""What a parameter is for; `model/roles.py` says what follows from it."""


@dataclass(frozen=True)
class Site:
    """Where a component stands: what it must know of its layer to say what it costs."""

    d_model: int
    norm: BlockNorm
    """The layer's norm, which inner norms take after."""
    position: Position
    dropout: Dropout = field(default_factory=Dropout)
    kernel: str = "auto"
    """How attention is computed (model/kernels.py)."""


class StateTensor(NamedTuple):
    """A tensor that a component keeps between passes, of one sequence."""

    name: str
    shape: tuple[Natural, ...]
    """Without the batch axis."""
    per_token: bool = False
    """Whether it has a row per token that may still be seen, so that it grows with the text, as keys and values do."""
    float32: bool = False
    """Held in float32 at least, whatever the format of the other tensors."""

    def n_bytes(self, bytes_each: int) -> int:
        """Of one sequence, where numbers are held in so many bytes unless they are float32."""
        return math.prod(self.shape) * (FLOAT32_BYTES if self.float32 else bytes_each)


def shared_out(n: int, tensor: int, what: str) -> int:
    """How many of the `n` each of so many devices has; UserError where they cannot have equally many."""
    if n % tensor:
        raise UserError(f"{what}: {n} cannot be shared evenly by {tensor} devices")
    return n // tensor


def _part(name: str) -> str:
    if name not in PARTS:
        raise ValueError(", ".join(PARTS))
    return name


def _own(operation: Operation) -> Operation:
    if operation.part in _OF_THE_MODEL:
        raise ValueError(f"another part than {', '.join(_OF_THE_MODEL)}, which are the model's")
    return operation


PARTS = ("norms", "positions", "attention", "mixer", "mlp")
"""Parts in a table of parameters that a component may have."""

_OF_THE_MODEL = ("embedding", "head", "stream", "loss", "optimiser", "total")
"""Parts in a table of FLOPs that a component may not have."""

PartName = Annotated[str, AfterValidator(_part)]
OwnOperation = Annotated[Operation, AfterValidator(_own)]


class Component(Registered):
    """One part of a layer: it reads the stream, and what it gives is added to the stream."""

    def resolve(self, d_model: int) -> Self:
        """Return the same component with every `Derived` field written out; resolving twice changes nothing."""
        return self

    @property
    def score_heads(self) -> int:
        """Heads in which queries are compared with keys, so that a position may stand beside their scores."""
        return 0

    def describe(self) -> dict[str, str]:
        """Heading -> a few words, for a table of layers. By default its kind and all of its fields."""
        fields = (f"{name} {value}" for name, value in self if name != "kind")
        return {self.section: " ".join([self.kind, *fields])}

    @abstractmethod
    def parameters(self, site: Site) -> dict[PartName, Natural]:
        """Learned numbers by the part of a table of costs that they belong to: `norms`, `positions`, or what the
        component calls its own."""

    def roles(self) -> tuple[RoleName, ...]:
        """Return the roles of its parameters. Constants are left out: any component may have them."""
        return ("input", "output")

    def vectors(self, site: Site) -> int:
        """Learned numbers that are in no matrix: biases, convolutions, rates of forgetting. Norms and positions, which
        are in none, are not counted."""
        return 0

    def in_matrices(self, site: Site) -> int:
        """Learned numbers that are in matrices, of which an optimiser may make other updates."""
        parts = self.parameters(site)
        return sum(parts.values()) - parts.get("norms", 0) - parts.get("positions", 0) - self.vectors(site)

    def active_parameters(self, site: Site) -> int:
        """Learned numbers that one token makes use of."""
        return sum(self.parameters(site).values())

    def share(self, tensor: int) -> Self:
        """What each of `tensor` devices has of it where they share its work (tensor parallelism, Shoeybi 2019): a
        component of this kind with as many times fewer heads, or a narrower middle. What all of them give adds up to
        what the whole gives. UserError where it cannot be divided so.
        """
        raise UserError(f"{self.kind}: it cannot be divided among devices; allowed: tensor=1")

    @abstractmethod
    def work(self, site: Site, this: Pass) -> Iterator[OwnOperation]:
        """What it computes and moves in that pass. All learned numbers that the pass makes use of are some operation's
        weights."""

    def flops(self, site: Site, this: Pass) -> Counter[str]:
        """Of its matrix products and convolutions in that pass, by what it calls its parts."""
        return matrix_flops(self.work(site, this))

    @abstractmethod
    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return the tensors that it keeps between passes over a text of up to `capacity` tokens."""

    def kept_bytes(self, site: Site, this: Pass) -> int:
        """What that pass reads of what is kept of its texts, these tokens' own included; nothing without a cache."""
        kept = sum(tensor.n_bytes(this.bytes_each) for tensor in self.state(site, this.context))
        return this.texts * kept if this.is_cached else 0


class Attention(Component):
    """The attention of a layer, or none."""

    section: ClassVar[Section] = "attention"
    default_kind: ClassVar[str | None] = "multihead"


class Mixer(Component):
    """A recurrent mixer beside attention or in its place, or none; what it keeps of a text has a fixed size."""

    section: ClassVar[Section] = "mixer"
    default_kind: ClassVar[str | None] = "none"


class MLP(Component):
    """The MLP of a layer, or none."""

    section: ClassVar[Section] = "mlp"
    default_kind: ClassVar[str | None] = "gated"

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return nothing: an MLP looks at one token at a time."""
        return ()


class Absent(Component):
    """No such branch in the layer: zero of each part that one would have."""

    part: ClassVar[str]
    """What such a branch calls its parameters."""
    flop_parts: ClassVar[tuple[str, ...]]
    """What it calls the parts of its FLOPs."""

    def describe(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def parameters(self, site: Site) -> dict[str, int]:
        """None."""
        return {self.part: 0}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """None."""
        return ()

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """None."""
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
    """The config as what it is, for code that knows no other kind; UserError where it is another."""
    if isinstance(config, schema):
        return config
    raise UserError(f"model.{section}.kind: {config.kind} in {where}; allowed here: {allowed}")
