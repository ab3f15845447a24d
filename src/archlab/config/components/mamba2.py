"""Mamba 2's mixer."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.component import Mixer, RoleName, Site, StateTensor, shared_out
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
    """A state-space model with one decay per head (Dao & Gu 2024).

    S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x, then gated by silu(z).
    """

    kind: Literal["mamba2"] = "mamba2"
    display_name: ClassVar[str] = "Mamba-2"
    n_heads: Derived[Heads] = DERIVED
    """Heads, each with a state of its own. null: 2 d_model / head_dim, rounded down, but one at least."""
    head_dim: Width = 64
    """Width of one head's input and output: rows of its state."""
    d_state: Width = 128
    """Width of B and C: columns of a head's state."""
    n_groups: Heads = 1
    """Of neighbouring heads that have one B and one C; the norm's mean square is over one of them, too."""
    taps: KernelSize = 4
    """Tokens that the convolution of x, B and C sees."""
    conv_bias: bool = True
    """Bias on that convolution."""
    in_bias: bool = False
    """Biases on the projections of the gate, of x, B, C and dt."""
    out_bias: bool = False
    """Bias on the output projection."""
    dt_min: NonNegative = 0.0
    """Least step dt that a token makes (`time_step_limit` in transformers)."""
    dt_max: Positive | None = None
    """Largest step. null: none."""
    norm: GatedNorm = GatedRMSNorm()
    """Of the output, beside its gate silu(z); none: the gate alone (Falcon-H1)."""

    def resolve(self, d_model: int) -> Self:
        """Return the same mixer with its number of heads written out."""
        return self.model_copy(update={"n_heads": self.n_heads or max(1, 2 * d_model // self.head_dim)})

    @property
    def inner_width(self) -> int:
        """Of all heads together."""
        return self.n_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: x, and every group's B and C."""
        return sum(self.conv_widths)

    @property
    def conv_widths(self) -> tuple[int, ...]:
        """Those of x, B and C."""
        of_groups = self.n_groups * self.d_state
        return self.inner_width, of_groups, of_groups

    def describe(self) -> dict[str, str]:
        """Heads and widths."""
        return {"mixer": f"{self.kind} {self.n_heads}x{self.head_dim}, state {self.d_state}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections, the convolution, and per head its decay, its skip and the bias of its step."""
        projections = (self._inputs + self.inner_width) * site.d_model
        return {"mixer": projections + self.vectors(site), "norms": self.inner_width * (self.norm.kind != "none")}

    def roles(self) -> tuple[RoleName, ...]:
        """Return the usual roles and `convolution`, that of its convolutions."""
        return ("input", "convolution", "output")

    def vectors(self, site: Site) -> int:
        """All but the projections' matrices."""
        biases = self._inputs * self.in_bias + site.d_model * self.out_bias
        return biases + self.conv_width * (self.taps + self.conv_bias) + 3 * self.n_heads

    @property
    def _inputs(self) -> int:
        """Numbers that projections make of the stream."""
        return self.inner_width + self.conv_width + self.n_heads

    def share(self, tensor: int) -> Self:
        """Whole groups, with their B and C."""
        n_groups = shared_out(self.n_groups, tensor, "groups of the mixer")
        n_heads = shared_out(self.n_heads, tensor, "heads of the mixer")
        return self.model_copy(update={"n_groups": n_groups, "n_heads": n_heads})

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """A step writes x B^T into every state and reads S C from it; chunks do the same by larger products."""
        inputs = self.inner_width + self.conv_width + self.n_heads
        H, P, N, G = self.n_heads, self.head_dim, self.d_state, self.n_groups
        n, Q = chunking(this.tokens)
        scan = this.tokens * 4 * H * P * N
        if this.counting != "visible":
            scan = n * Q * (2 * G * Q * N + 2 * H * Q * P + 4 * H * P * N)
        conv, states = self.state(site, 0)
        yield this.product("mixer", site.d_model, inputs, bias=inputs * self.in_bias)
        yield convolution(this, self.conv_width, self.taps, conv, bias=self.conv_bias)
        yield from this.activation("mixer", "silu", self.conv_width)
        yield this.element_wise("element-wise", "mixer", H, flops=8, weights=2 * H)
        # In float32 x, B, C and dt; of every chunk the decays between tokens, the weights with and without them, x as
        # three products read it and what is read of the state before, B, C (of several groups twice), and that state.
        saved = this.tokens * (self.conv_width + 4 * H)
        saved += n * (Q * (2 * H * Q + G * Q + H + 4 * H * P + min(G, 2) * 2 * G * N) + 2 * H * P * N)
        yield scanning(this, scan, states, self.conv_width + H, self.inner_width, weights=H, saved=saved)
        yield from gated(this, self.norm, self.inner_width, self.inner_width)
        yield this.product("mixer", self.inner_width, site.d_model, bias=site.d_model * self.out_bias)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The convolution's last inputs, and a matrix per head."""
        shape = (self.n_heads, self.head_dim, self.d_state)
        return StateTensor("conv", (self.taps - 1, self.conv_width)), StateTensor("scan", shape, float32=True)
