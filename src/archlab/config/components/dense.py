"""Dense MLPs, plain and gated."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.activation import ActivationName, activation_named
from archlab.config.components.component import MLP, ProjectionShape, Site, divide_evenly
from archlab.config.components.norm import NoNorm
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Positive, Width


class Dense(MLP):
    """Base class of plain and gated MLPs."""

    activation: ActivationName = "silu"
    """Activation of the MLP. A gated MLP is called SwiGLU with silu, GEGLU with gelu, ReGLU with relu, GLU with
    sigmoid, and bilinear with identity."""
    d_ff: Derived[Width] = DERIVED
    """Width of the hidden layer. null: 4 d_model (plain) or 8/3 d_model (gated), rounded up to a multiple of 8."""
    bias: bool = False
    """Whether every projection of the MLP has a bias."""
    sub_norm: bool = False
    """Whether a norm of the block's kind precedes the down projection (BitNet)."""

    matrices: ClassVar[int]
    """Number of weight matrices. Each has d_model x d_ff elements."""
    default_width: ClassVar[float]
    """Default value of d_ff, divided by d_model."""

    def resolve(self, d_model: int) -> Self:
        d_ff = self.d_ff or 8 * math.ceil(math.ceil(self.default_width * d_model) / 8)
        return self.model_copy(update={"d_ff": d_ff})

    def describe(self) -> dict[str, str]:
        return {"mlp": f"{self.kind} {self.activation} {self.d_ff}"}

    def parameters(self, site: Site) -> dict[str, int]:
        learned = self.in_projections(site) + self.vectors(site)
        return {"mlp": learned, "norms": self.sub_norm * site.norm.n_parameters(self.d_ff)}

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        names = ("up", "gate")[: self.matrices - 1]
        inputs = {name: ProjectionShape(site.d_model, self.d_ff) for name in names}
        return {**inputs, "down": ProjectionShape(self.d_ff, site.d_model, "mixed")}

    def vectors(self, site: Site) -> int:
        biases = self.bias * ((self.matrices - 1) * self.d_ff + site.d_model)
        return biases + activation_named(self.activation).n_parameters

    def share(self, tensor: int) -> Self:
        return self.model_copy(update={"d_ff": divide_evenly(self.d_ff, tensor, "d_ff")})

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        inputs, biases = self.matrices - 1, self.d_ff * self.bias
        for n in range(inputs):
            yield model_pass.product("mlp", site.d_model, self.d_ff, bias=biases, shares_input=n > 0)
        yield from self.inner_work(model_pass)
        yield from model_pass.norm(site.norm if self.sub_norm else NoNorm(), self.d_ff)
        yield model_pass.product("mlp", self.d_ff, site.d_model, bias=site.d_model * self.bias)

    def inner_work(self, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations between the up projection and the down projection."""
        yield from model_pass.activation("mlp", self.activation, self.d_ff)


class PlainMLP(Dense):
    """Plain MLP: W2 act(W1 x)."""

    kind: Literal["plain"] = "plain"

    matrices: ClassVar[int] = 2
    default_width: ClassVar[float] = 4


class GatedMLP(Dense):
    """Gated MLP: W2 (act(W1 x) * V x) (Shazeer 2020)."""

    kind: Literal["gated"] = "gated"
    clamp: Positive | None = None
    """Clamping limit c: W1 x is clamped to at most c before the activation, and V x to [-c, c] (gpt-oss: 7). null: no
    clamping."""
    up_offset: Positive | None = None
    """Number added to V x after clamping and before the multiplication by act(W1 x) (gpt-oss: 1). null: nothing is
    added."""

    matrices: ClassVar[int] = 3
    default_width: ClassVar[float] = 8 / 3

    def inner_work(self, model_pass: Pass) -> Iterator[Operation]:
        """Yield the activation and the multiplication by the gate. If `clamp` is set, training also stores the inputs
        of the clamps."""
        yield from super().inner_work(model_pass)
        saved = 2 if self.clamp is None else 4
        yield model_pass.element_wise("element-wise", "mlp", self.d_ff, flops=1, read=2, saved=saved)
