"""A dense MLP: plain or gated, which activation, how wide."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.activation import ActivationName, activation_named
from archlab.config.components.component import MLP, Site, shared_out
from archlab.config.components.norm import NoNorm
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Positive, Width


class Dense(MLP):
    """What plain and gated MLPs have in common."""

    activation: ActivationName = "silu"
    """gated: silu is SwiGLU, gelu GEGLU, relu ReGLU, sigmoid GLU, identity bilinear."""
    d_ff: Derived[Width] = DERIVED
    """Width of one matrix. null: 4 d_model plain, 8/3 d_model gated, rounded up to a multiple of 8."""
    bias: bool = False
    """Biases on every projection of the MLP."""
    sub_norm: bool = False
    """One more norm, of the block's kind, before the down projection (BitNet)."""

    matrices: ClassVar[int]
    """Of d_model x d_ff numbers each."""
    default_width: ClassVar[float]
    """Width of one matrix where the config does not say, as a multiple of d_model."""

    def resolve(self, d_model: int) -> Self:
        """Return the same MLP with its width written out."""
        d_ff = self.d_ff or 8 * math.ceil(math.ceil(self.default_width * d_model) / 8)
        return self.model_copy(update={"d_ff": d_ff})

    def describe(self) -> dict[str, str]:
        """Kind, activation and width."""
        return {"mlp": f"{self.kind} {self.activation} {self.d_ff}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Matrices, biases, what the activation learns, and the norm before the last matrix."""
        projections = self.matrices * self.d_ff * site.d_model
        return {"mlp": projections + self.vectors(site), "norms": self.sub_norm * site.norm.n_parameters(self.d_ff)}

    def vectors(self, site: Site) -> int:
        """Biases, and what the activation learns."""
        biases = self.bias * ((self.matrices - 1) * self.d_ff + site.d_model)
        return biases + activation_named(self.activation).n_parameters

    def share(self, tensor: int) -> Self:
        """Some of its middle."""
        return self.model_copy(update={"d_ff": shared_out(self.d_ff, tensor, "d_ff")})

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """Products, the activation, and the gate's."""
        inputs, biases = self.matrices - 1, self.d_ff * self.bias
        for n in range(inputs):
            yield this.product("mlp", site.d_model, self.d_ff, bias=biases, shares_input=n > 0)
        yield from self.inner_work(this)
        yield from this.norm(site.norm if self.sub_norm else NoNorm(), self.d_ff)
        yield this.product("mlp", self.d_ff, site.d_model, bias=site.d_model * self.bias)

    def inner_work(self, this: Pass) -> Iterator[Operation]:
        """Between the products."""
        yield from this.activation("mlp", self.activation, self.d_ff)


class PlainMLP(Dense):
    """W2 act(W1 x)."""

    kind: Literal["plain"] = "plain"

    matrices: ClassVar[int] = 2
    default_width: ClassVar[float] = 4


class GatedMLP(Dense):
    """W2 (act(W1 x) * V x) (Shazeer 2020)."""

    kind: Literal["gated"] = "gated"
    clamp: Positive | None = None
    """W1 x is held to at most this, V x to between minus this and this (gpt-oss: 7). null: not."""
    up_offset: Positive | None = None
    """Added to V x, after the clamp (gpt-oss: 1). null: nothing."""

    matrices: ClassVar[int] = 3
    default_width: ClassVar[float] = 8 / 3

    def inner_work(self, this: Pass) -> Iterator[Operation]:
        """Return the activation and the gate's product. Clamps keep what they read, too."""
        yield from super().inner_work(this)
        saved = 2 if self.clamp is None else 4
        yield this.element_wise("element-wise", "mlp", self.d_ff, flops=1, read=2, saved=saved)
