"""Real-gated linear recurrent unit (RG-LRU)."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.component import (
    MatrixShape,
    Mixer,
    ProjectionShape,
    RoleName,
    Site,
    StateTensor,
    divide_evenly,
    weights_in,
)
from archlab.config.components.recurrent import KernelSize, convolution
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Width


class RGLRU(Mixer):
    """RG-LRU, the mixer of Griffin (De 2024): the state of each channel decays at a rate that depends on the input.

    At each token, S <- a S + sqrt(1 - a^2) i u, where the input u comes from a projection and a convolution. The gates
    r and i are sigmoid(W u + b), and a = exp(-8 r softplus(Lambda)). The state is multiplied by another gate and
    projected to the output.
    """

    kind: Literal["rglru"] = "rglru"
    display_name: ClassVar[str] = "RG-LRU"
    lru_width: Derived[Width] = DERIVED
    """Number of channels, each with a scalar state. null: d_model."""
    n_heads: Heads = 1
    """Number of groups of consecutive channels. The gates of a channel read only the channels of its group
    (RecurrentGemma: 256 channels per group)."""
    taps: KernelSize = 4
    """Kernel size of the convolution of u: the number of tokens that it sees, including the current token."""

    def resolve(self, d_model: int) -> Self:
        return self.model_copy(update={"lru_width": self.lru_width or d_model})

    def describe(self) -> dict[str, str]:
        return {"mixer": f"{self.kind} {self.n_heads}x{self.lru_width // self.n_heads}"}

    def parameters(self, site: Site) -> dict[str, int]:
        of_gates = weights_in(self.other_matrices(site))
        return {"mixer": self.in_projections(site) + of_gates + self.vectors(site)}

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "convolution", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        inputs = {name: ProjectionShape(site.d_model, self.lru_width) for name in ("gate", "x")}
        return {**inputs, "out": ProjectionShape(self.lru_width, site.d_model, "mixed")}

    def other_matrices(self, site: Site) -> Counter[MatrixShape]:
        width = self.lru_width // self.n_heads
        return Counter({MatrixShape(width, width, self.n_heads): 2})  # the blocks of both gates

    def vectors(self, site: Site) -> int:
        return self.lru_width * (self.taps + 6) + site.d_model

    def share(self, tensor: int) -> Self:
        n_heads = divide_evenly(self.n_heads, tensor, "groups of the mixer's channels")
        return self.model_copy(update={"n_heads": n_heads, "lru_width": self.lru_width // tensor})

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations, which are the same for every kind of counting. The scan has no matrix products. It adds
        elements in ceil(log2(tokens)) rounds, but in at least one."""
        width = self.lru_width
        conv, states = self.state(site, 0)
        yield model_pass.product("mixer", site.d_model, 2 * width, bias=2 * width)
        yield convolution(model_pass, width, self.taps, conv, bias=True)
        block = width // self.n_heads
        yield model_pass.product("mixer", width, 2 * block, bias=2 * width)
        yield model_pass.element_wise("element-wise", "mixer", width, flops=20, read=3, written=2, weights=width)
        doublings = max(1, math.ceil(math.log2(model_pass.tokens)))
        summed = model_pass.element_wise("element-wise", "mixer", doublings * width, flops=3, read=4, written=2)
        # Stored in float32: nine values per channel for u, decays and inputs, and three for each doubling.
        saved = (9 + 3 * doublings) * model_pass.rows * width * FLOAT32_BYTES
        kept = model_pass.texts * states.n_bytes(model_pass.bytes_each) if model_pass.is_cached else 0.0
        yield summed._replace(kept=kept, saved=saved)
        yield from model_pass.activation("mixer", "gelu_tanh", width)
        yield model_pass.element_wise("element-wise", "mixer", width, flops=1, read=2, saved=2)
        yield model_pass.product("mixer", width, site.d_model, bias=site.d_model)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        conv = StateTensor("conv", (self.taps - 1, self.lru_width))
        return conv, StateTensor("scan", (self.lru_width,), float32=True)
