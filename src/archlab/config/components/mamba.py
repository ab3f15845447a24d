"""Mixer of Mamba 1."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from archlab.config.components.component import Mixer, ProjectionShape, RoleName, Site, StateTensor
from archlab.config.components.norm import AnyRMSNorm, NoNorm
from archlab.config.components.recurrent import KernelSize, chunking, convolution, gated, scanning
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Width

LARGEST_CHUNK = 16
"""Largest number of tokens of a chunk on a CPU, in whose cache their states are processed several times faster. On a
GPU, a chunk has several rows of this many tokens. Costs are those of a CPU."""


def chunk_size(seq_len: int) -> int:
    """Return the number of tokens per chunk of the scan. The last chunk may be smaller."""
    return min(LARGEST_CHUNK, chunking(seq_len)[1])


class Mamba(Mixer):
    """Selective state-space model with d_state decay rates per channel (Mamba 1, Gu & Dao 2023).

    At each token, S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x. The output y is then multiplied by silu(z).
    """

    kind: Literal["mamba"] = "mamba"
    display_name: ClassVar[str] = "Mamba"
    inner_width: Derived[Width] = DERIVED
    """Number of channels, each with its own state. null: 2 d_model."""
    d_state: Width = 16
    """Width of B and C, and number of values in each channel's state."""
    dt_rank: Derived[Width] = DERIVED
    """Rank of the projection to the steps dt. null: d_model / 16, rounded up."""
    taps: KernelSize = 4
    """Kernel size of the convolution of x: the number of tokens that it sees, including the current token."""
    conv_bias: bool = True
    """Whether the convolution of x has a bias."""
    in_bias: bool = False
    """Whether the projections to the gate z and x have biases."""
    out_bias: bool = False
    """Whether the output projection has a bias."""
    inner_norm: Annotated[AnyRMSNorm | NoNorm, Field(discriminator="kind")] = NoNorm()
    """Norm of B, of C, and of the input of the projection to dt (Jamba: `rmsnorm`; Falcon-Mamba: without a weight)."""

    def resolve(self, d_model: int) -> Self:
        inner_width, dt_rank = self.inner_width or 2 * d_model, self.dt_rank or math.ceil(d_model / 16)
        return self.model_copy(update={"inner_width": inner_width, "dt_rank": dt_rank})

    def describe(self) -> dict[str, str]:
        return {"mixer": f"{self.kind} {self.inner_width}, state {self.d_state}"}

    @property
    def _mixed(self) -> tuple[int, int, int]:
        """Widths of the projections of x: to dt, B and C."""
        return self.dt_rank, self.d_state, self.d_state

    def parameters(self, site: Site) -> dict[str, int]:
        norms = sum(self.inner_norm.n_parameters(width) for width in self._mixed)
        return {"mixer": self.in_projections(site) + self.vectors(site), "norms": norms}

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "convolution", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        width = self.inner_width
        inputs = {name: ProjectionShape(site.d_model, width) for name in ("gate", "x")}
        widths = {"dt_low": self.dt_rank, "B": self.d_state, "C": self.d_state}
        of_x = {name: ProjectionShape(width, d_out, "mixed") for name, d_out in widths.items()}
        steps = {"dt": ProjectionShape(self.dt_rank, width, "mixed")}
        return {**inputs, **of_x, **steps, "out": ProjectionShape(width, site.d_model, "mixed")}

    def vectors(self, site: Site) -> int:
        biases = 2 * self.inner_width * self.in_bias + site.d_model * self.out_bias
        return biases + self.inner_width * (self.taps + self.conv_bias + self.d_state + 2)

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations, which are the same for every way of counting. Only S C is a matrix product. Decays and
        states are computed in float32, element by element."""
        d, width, N, rank = site.d_model, self.inner_width, self.d_state, self.dt_rank
        conv, states = self.state(site, 0)
        is_float32 = model_pass.bytes_each == FLOAT32_BYTES
        yield model_pass.product("mixer", d, 2 * width, bias=2 * width * self.in_bias)
        yield convolution(model_pass, width, self.taps, conv, bias=self.conv_bias)
        yield from model_pass.activation("mixer", "silu", width)
        yield model_pass.product("mixer", width, sum(self._mixed), shares_input=is_float32)  # the scan stores x, too
        for features in self._mixed:
            yield from model_pass.norm(self.inner_norm, features)
        yield model_pass.product("mixer", rank, width)
        yield model_pass.element_wise("element-wise", "mixer", width, flops=8, weights=2 * width)
        yield model_pass.element_wise("element-wise", "mixer", width * N, flops=5, read=4, written=4)
        # Stored in float32: x, dt with and without the softplus, B, C, and the state before every chunk.
        scan, saved = model_pass.tokens * 2 * width * N, model_pass.tokens * (3 * width + 2 * N)
        saved += math.ceil(model_pass.tokens / chunk_size(model_pass.tokens)) * width * N
        yield scanning(model_pass, scan, states, 2 * width + 2 * N, width, weights=width * N, saved=saved)
        yield from gated(model_pass, NoNorm(), width, width)
        yield model_pass.product("mixer", width, d, bias=d * self.out_bias)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        shape = (self.d_state, self.inner_width)
        return StateTensor("conv", (self.taps - 1, self.inner_width)), StateTensor("scan", shape, float32=True)
