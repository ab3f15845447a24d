"""Base classes of the components of a layer. Each component states its own costs. Code that adds up parameters, FLOPs
and caches does not depend on the kinds of components."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
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
"""Purpose of a parameter. For each role, `model/roles.py` defines how its parameters are initialized and trained."""


@dataclass(frozen=True)
class Site:
    """Place of a component in a layer: the settings of the layer from which its module is built and its costs are
    computed."""

    d_model: int
    norm: BlockNorm
    """Norm of the layer. Norms inside the layer's components have the same kind."""
    position: Position
    dropout: Dropout = field(default_factory=Dropout)
    kernel: str = "auto"
    """Name of the layer's attention kernel (model/kernels.py)."""
    reads_source: bool = False
    """Whether the component is cross-attention, whose keys and values come from the encoder's output."""

    def n_keys(self, model_pass: Pass) -> int:
        """Return the number of tokens of each sequence from which keys come: those of the source text for
        cross-attention, otherwise those of the sequence itself."""
        return model_pass.source if self.reads_source else model_pass.context


class StateTensor(NamedTuple):
    """Shape of a tensor, such as cached keys, that a component keeps for one sequence between passes."""

    name: str
    shape: tuple[Natural, ...]
    """Shape of the tensor without the batch axis."""
    per_token: bool = False
    """Whether the tensor has one row for each token that later tokens may see, as keys and values do. The tensor then
    grows with the sequence."""
    float32: bool = False
    """Whether the tensor is stored in float32 or wider, regardless of the dtype of the other tensors."""

    def n_bytes(self, bytes_each: int) -> int:
        """Return the bytes for one sequence, with `bytes_each` bytes per element. Float32 tensors always take 4 bytes
        per element."""
        return math.prod(self.shape) * (FLOAT32_BYTES if self.float32 else bytes_each)


class ProjectionShape(NamedTuple):
    """Shape of a component's projection: a linear map with a matrix [d_out, d_in] of its own."""

    d_in: int
    d_out: int
    reads: Literal["input", "source", "latent", "mixed"] = "input"
    """Values that the projection reads. `input`: the input of the component. `source`: the output of the encoder.
    `latent`: a vector that another projection has computed. `mixed`: the values from which the component computes its
    output, such as hidden units."""

    def added(self, rank: int) -> int:
        """Return the number of parameters that LoRA adds: a matrix [rank, d_in] and a matrix [d_out, rank]."""
        return rank * (self.d_in + self.d_out)


class MatrixShape(NamedTuple):
    """Shape of a parameter that holds weight matrices."""

    d_out: int
    d_in: int
    stacked: int = 1
    """Number of matrices [d_out, d_in] that the parameter holds, such as those of all experts."""

    @property
    def n_weights(self) -> int:
        return self.d_out * self.d_in * self.stacked


def weights_in(shapes: Mapping[MatrixShape, int]) -> int:
    """Return the number of weights in the matrices that `shapes` counts by shape."""
    return sum(n * shape.n_weights for shape, n in shapes.items())


def divide_evenly(n: int, tensor: int, what: str) -> int:
    """Return `n` divided by `tensor`, a number of devices. Raise a UserError that names `what` if there is a
    remainder."""
    if n % tensor:
        raise UserError(f"{what}: {n} cannot be divided evenly among {tensor} devices; use a divisor of {n}")
    return n // tensor


def _part(name: str) -> str:
    if name not in PARTS:
        raise ValueError(", ".join(PARTS))
    return name


def _own_operation(operation: Operation) -> Operation:
    if operation.part in _MODEL_PARTS:
        raise ValueError(f"any part except {', '.join(_MODEL_PARTS)}, which belong to the model")
    return operation


PARTS = ("norms", "positions", "attention", "mixer", "mlp")
"""Rows of the parameter table that a component may add to."""

_MODEL_PARTS = ("embedding", "head", "stream", "loss", "optimiser", "total")
"""Rows of the FLOP table that belong to the model. No component may add to them."""

PartName = Annotated[str, AfterValidator(_part)]
OwnOperation = Annotated[Operation, AfterValidator(_own_operation)]


class Component(Registered):
    """One part of a layer. A component reads the residual stream, and its output is added to the stream."""

    def resolve(self, d_model: int) -> Self:
        """Return a copy with every `Derived` field filled in. Resolving a resolved component changes nothing."""
        return self

    @property
    def score_heads(self) -> int:
        """Number of heads that compare queries with keys. 0: the component has no scores to which a position encoding
        could add a term."""
        return 0

    def describe(self) -> dict[str, str]:
        """Return the component's entries in the table of layers: a dict from column headings to short texts. By
        default, the only entry lists the kind and all fields."""
        fields = (f"{name} {value}" for name, value in self if name != "kind")
        return {self.section: " ".join([self.kind, *fields])}

    @abstractmethod
    def parameters(self, site: Site) -> dict[PartName, Natural]:
        """Return the parameter counts by row of the parameter table. The rows are `norms`, `positions` and the
        component's own row."""

    def roles(self) -> tuple[RoleName, ...]:
        """Return the roles of the component's parameters. `constant` is left out, because any component may have
        constants."""
        return ("input", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        """Return the shapes of the component's projections, by the names of their modules. LoRA can change these."""
        return {}

    def in_projections(self, site: Site) -> int:
        """Return the number of weights in the matrices of `projections`."""
        return sum(shape.d_out * shape.d_in for shape in self.projections(site).values())

    def vectors(self, site: Site) -> int:
        """Return the number of parameters outside weight matrices: biases, convolutions, decay rates. Parameters of
        norms and position encodings are not included."""
        return 0

    def matrix_shapes(self, site: Site) -> Counter[MatrixShape]:
        """Return how many tensors of weight matrices have each shape."""
        shapes = Counter(MatrixShape(shape.d_out, shape.d_in) for shape in self.projections(site).values())
        shapes.update(self.other_matrices(site))
        return shapes

    def other_matrices(self, site: Site) -> Counter[MatrixShape]:
        """Return how many tensors of weight matrices that are not in `projections` have each shape.

        By default, all these weights count as one matrix that reads d_model features.
        """
        parts = self.parameters(site)
        own = sum(parts.values()) - parts.get("norms", 0) - parts.get("positions", 0)
        left = own - self.vectors(site) - self.in_projections(site)
        return Counter({MatrixShape(left // site.d_model, site.d_model): 1} if left else ())

    def active_parameters(self, site: Site) -> int:
        """Return the number of parameters that one token uses."""
        return sum(self.parameters(site).values())

    def n_corrections(self) -> int:
        """Return the number of correction biases of the component's router, which are buffers."""
        return 0

    def share(self, tensor: int) -> Self:
        """Return the part of this component that each of `tensor` devices computes (tensor parallelism, Shoeybi 2019).

        The part is a component of the same kind with fewer heads or a narrower hidden layer. The outputs of all parts
        add up to the output of the whole component. Raise UserError if the component cannot be divided this way.
        """
        if tensor == 1:
            return self
        raise UserError(f"{self.kind}: it cannot be divided among devices; allowed: tensor=1")

    @abstractmethod
    def work(self, site: Site, model_pass: Pass) -> Iterator[OwnOperation]:
        """Yield the operations of this pass. Each parameter that the pass uses must be counted in the weights of an
        operation."""

    def flops(self, site: Site, model_pass: Pass) -> Counter[str]:
        """Return the FLOPs of the component's matrix products and convolutions in this pass, by row of the FLOP
        table."""
        return matrix_flops(self.work(site, model_pass))

    @abstractmethod
    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return the tensors that the component caches between passes over a sequence of up to `capacity` tokens."""

    def kept_bytes(self, site: Site, model_pass: Pass) -> int:
        """Return the number of bytes that this pass reads from the cache, including the entries that the pass itself
        adds. Return 0 if there is no cache."""
        length = site.n_keys(model_pass)
        kept = sum(tensor.n_bytes(model_pass.bytes_each) for tensor in self.state(site, length))
        return model_pass.texts * kept if model_pass.is_cached else 0


class Attention(Component):
    """Base class of all kinds of attention, including `none`."""

    section: ClassVar[Section] = "attention"
    default_kind: ClassVar[str | None] = "multihead"


class Mixer(Component):
    """Base class of all kinds of recurrent mixers, including `none`. A layer can have a mixer in addition to attention
    or instead of it. The state of a mixer has a fixed size."""

    section: ClassVar[Section] = "mixer"
    default_kind: ClassVar[str | None] = "none"


class MLP(Component):
    """Base class of all kinds of MLP, including `none`."""

    section: ClassVar[Section] = "mlp"
    default_kind: ClassVar[str | None] = "gated"

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return no tensors, because an MLP processes each token separately."""
        return ()


class Absent(Component):
    """Placeholder for a component that the layer does not have. All its counts are zero."""

    part: ClassVar[str]
    """Row of the parameter table to which the absent component would belong."""
    flop_parts: ClassVar[tuple[str, ...]]
    """Rows of the FLOP table to which the absent component would belong."""

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
    """Return the config as an instance of `schema`. Raise UserError if the config has a different kind."""
    if isinstance(config, schema):
        return config
    raise UserError(f"model.{section}.kind: {config.kind} in {where}; allowed here: {allowed}")
