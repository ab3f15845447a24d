"""Mixer of Mamba 2."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.component import Mixer, ProjectionShape, RoleName, Site, StateTensor, divide_evenly
from archlab.config.components.recurrent import (
    GatedNorm,
    GatedRMSNorm,
    KernelSize,
    chunking,
    convolution,
    gated,
    scanning,
)
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, NonNegative, Positive, Width


class Mamba2(Mixer):
    """State-space model with one decay rate per head (Mamba 2, Dao & Gu 2024).

    At each token, S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x. The output y is then multiplied by silu(z).
    """

    kind: Literal["mamba2"] = "mamba2"
    display_name: ClassVar[str] = "Mamba-2"
    n_heads: Derived[Heads] = DERIVED
    """Number of heads, each with its own state. null: 2 d_model / head_dim, rounded down; at least one."""
    head_dim: Width = 64
    """Width of the input and output of one head, and number of rows of its state."""
    d_state: Width = 128
    """Width of B and C, and number of columns of each head's state."""
    n_groups: Heads = 1
    """Number of groups of consecutive heads. All heads of a group share B and C, and the output norm computes one mean
    square per group."""
    taps: KernelSize = 4
    """Kernel size of the convolution of x, B and C: the number of tokens that it sees, including the current token."""
    conv_bias: bool = True
    """Whether the convolution of x, B and C has a bias."""
    in_bias: bool = False
    """Whether the projections to the gate z, x, B, C and dt have biases."""
    out_bias: bool = False
    """Whether the output projection has a bias."""
    dt_min: NonNegative = 0.0
    """Smallest step dt of a token, after the softplus (`time_step_limit` in transformers)."""
    dt_max: Positive | None = None
    """Largest step dt of a token, after the softplus. null: no limit."""
    norm: GatedNorm = GatedRMSNorm()
    """Norm of the output, combined with the gate silu(z). `none`: the gate without a norm (Falcon-H1)."""

    def resolve(self, d_model: int) -> Self:
        return self.model_copy(update={"n_heads": self.n_heads or max(1, 2 * d_model // self.head_dim)})

    @property
    def inner_width(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        return sum(self.conv_widths)

    @property
    def conv_widths(self) -> tuple[int, ...]:
        group_width = self.n_groups * self.d_state
        return self.inner_width, group_width, group_width

    def describe(self) -> dict[str, str]:
        return {"mixer": f"{self.kind} {self.n_heads}x{self.head_dim}, state {self.d_state}"}

    def parameters(self, site: Site) -> dict[str, int]:
        learned = self.in_projections(site) + self.vectors(site)
        return {"mixer": learned, "norms": self.inner_width * (self.norm.kind != "none")}

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "convolution", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        width, of_groups = self.inner_width, self.n_groups * self.d_state
        widths = {"gate": width, "x": width, "B": of_groups, "C": of_groups, "dt": self.n_heads}
        inputs = {name: ProjectionShape(site.d_model, d_out) for name, d_out in widths.items()}
        return {**inputs, "out": ProjectionShape(width, site.d_model, "mixed")}

    def vectors(self, site: Site) -> int:
        biases = self._input_width * self.in_bias + site.d_model * self.out_bias
        return biases + self.conv_width * (self.taps + self.conv_bias) + 3 * self.n_heads

    @property
    def _input_width(self) -> int:
        """Width of the outputs of all projections of the input together."""
        return self.inner_width + self.conv_width + self.n_heads

    def share(self, tensor: int) -> Self:
        n_groups = divide_evenly(self.n_groups, tensor, "groups of the mixer")
        n_heads = divide_evenly(self.n_heads, tensor, "heads of the mixer")
        return self.model_copy(update={"n_groups": n_groups, "n_heads": n_heads})

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations of the mixer. For a single token, x B^T is added to every state, and S C is read from
        it. For more tokens, larger matrix products over chunks of tokens are used instead. The product with which a GPU
        computes the states before all chunks is not counted."""
        H, P, N, G = self.n_heads, self.head_dim, self.d_state, self.n_groups
        n, Q = chunking(model_pass.tokens)
        scan = model_pass.tokens * 4 * H * P * N
        if model_pass.counting != "visible":
            scan = n * Q * (2 * G * Q * N + 2 * H * Q * P + 4 * H * P * N)
        conv, states = self.state(site, 0)
        yield model_pass.product("mixer", site.d_model, self._input_width, bias=self._input_width * self.in_bias)
        yield convolution(model_pass, self.conv_width, self.taps, conv, bias=self.conv_bias)
        yield from model_pass.activation("mixer", "silu", self.conv_width)
        yield model_pass.element_wise("element-wise", "mixer", H, flops=8, weights=2 * H)
        # Stored in float32: x, B, C and dt. For every chunk: the decays between tokens; the weights with and without
        # them; x as three products read it; B and C (twice with several groups); the state before, and its output.
        saved = model_pass.tokens * (self.conv_width + 4 * H)
        saved += n * (Q * (2 * H * Q + G * Q + H + 4 * H * P + min(G, 2) * 2 * G * N) + 2 * H * P * N)
        yield scanning(model_pass, scan, states, self.conv_width + H, self.inner_width, weights=H, saved=saved)
        yield from gated(model_pass, self.norm, self.inner_width, self.inner_width)
        yield model_pass.product("mixer", self.inner_width, site.d_model, bias=site.d_model * self.out_bias)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        shape = (self.n_heads, self.head_dim, self.d_state)
        return StateTensor("conv", (self.taps - 1, self.conv_width)), StateTensor("scan", shape, float32=True)
