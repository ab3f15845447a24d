"""Recurrent mixers, which stand beside attention or in its place: what they keep of a text has a fixed size."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.base import Base, Heads, NonNegative, Positive, Width
from archlab.config.component import Absent, Component, Counting, Site, StateTensor, filled_in
from archlab.config.norm import NoNorm

CHUNK = 64
"""Tokens that a scan mixes at once by matrix products, at most; between chunks it hands on a state."""

Taps = Annotated[int, Field(ge=2, le=1000)]
"""Of a causal convolution: how many tokens it sees, its own among them. Published models have up to 7."""


def chunking(seq_len: int) -> tuple[int, int]:
    """Number of chunks and tokens in each, as few and then as short as can be; the last one may not be full."""
    n = max(1, math.ceil(seq_len / CHUNK))
    return n, max(1, math.ceil(seq_len / n))


class GatedRMSNorm(Base):
    """RMS norm of a mixer's output over each of its groups of heads, with a weight per feature."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: Positive = 1e-5
    """Added to the mean square before the root."""
    gate: Literal["before", "after"] = "before"
    """before: the norm is of what the gate has multiplied (Mamba 2); after: the gate multiplies what is normed
    (Falcon-H1)."""


GatedNorm = Annotated[GatedRMSNorm | NoNorm, Field(discriminator="kind")]


class Mamba2(Component):
    """A state-space model with one decay per head (Dao & Gu 2024).

    S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x, then gated by silu(z).
    """

    kind: Literal["mamba2"] = "mamba2"  # pyright: ignore[reportIncompatibleVariableOverride]
    n_heads: Heads | None = None
    """Heads, each with a state of its own. null: 2 d_model / head_dim, rounded down, but one at least."""
    head_dim: Width = 64
    """Width of one head's input and output: rows of its state."""
    d_state: Width = 128
    """Width of B and C: columns of a head's state."""
    n_groups: Heads = 1
    """Of neighbouring heads that have one B and one C; the norm's mean square is over one of them, too."""
    taps: Taps = 4
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

    derived: ClassVar[tuple[str, ...]] = ("n_heads",)

    def resolve(self, d_model: int) -> "ResolvedMamba2":
        """With the number of heads written out."""
        return filled_in(ResolvedMamba2, self, n_heads=self.n_heads or max(1, 2 * d_model // self.head_dim))


class ResolvedMamba2(Mamba2):
    """Mamba 2's mixer with every derived value filled in."""

    n_heads: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]

    @property
    def inner_width(self) -> int:
        """Of all heads together."""
        return self.n_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: x, and every group's B and C."""
        return self.inner_width + 2 * self.n_groups * self.d_state

    def describe(self) -> dict[str, str]:
        """Heads and widths."""
        return {"mixer": f"{self.kind} {self.n_heads}x{self.head_dim}, state {self.d_state}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections, the convolution, and per head its decay, its skip and the bias of its step."""
        inputs = self.inner_width + self.conv_width + self.n_heads
        projections = inputs * (site.d_model + self.in_bias) + (self.inner_width + self.out_bias) * site.d_model
        own = self.conv_width * (self.taps + self.conv_bias) + 3 * self.n_heads
        return {"mixer": projections + own, "norms": self.inner_width * (self.norm.kind != "none")}

    def flops(self, site: Site, seq_len: int, counting: Counting) -> dict[str, float]:
        """A step writes x B^T into every state and reads S C from it; chunks do the same by larger products."""
        inputs = self.inner_width + self.conv_width + self.n_heads
        H, P, N, G = self.n_heads, self.head_dim, self.d_state, self.n_groups
        scan = seq_len * 4 * H * P * N
        if counting != "visible":
            n, Q = chunking(seq_len)
            scan = n * Q * (2 * G * Q * N + 2 * H * Q * P + 4 * H * P * N)
        projections = 2 * site.d_model * (inputs + self.inner_width)
        return {"mixer": scan + seq_len * (projections + 2 * self.taps * self.conv_width)}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The convolution's last inputs, and a matrix per head."""
        shape = (self.n_heads, self.head_dim, self.d_state)
        return StateTensor("conv", (self.taps - 1, self.conv_width)), StateTensor("scan", shape, float32=True)


class GatedDelta(Component):
    """The gated delta rule: a head's state forgets, then moves its value for the key k towards v by the share beta
    (Yang 2024)."""

    kind: Literal["gated_delta"] = "gated_delta"  # pyright: ignore[reportIncompatibleVariableOverride]
    n_key_heads: Heads | None = None
    """Heads of queries and keys. null: d_model / key_dim, rounded down, but one at least."""
    n_value_heads: Heads | None = None
    """Heads of values, each with a state of its own; a key head serves several neighbours. null: n_key_heads."""
    key_dim: Width = 128
    """Width of one query or key: rows of a head's state."""
    value_dim: Width | None = None
    """Width of one value: columns of a head's state. null: 2 key_dim."""
    taps: Taps = 4
    """Tokens that the convolution of queries, keys and values sees."""
    negative_eigenvalues: bool = False
    """beta goes from 0 to 2 and not to 1, so that a state may turn a key's value round (Grazzi 2024)."""
    norm_eps: Positive = 1e-6
    """Added to the mean square of a head's output before the root."""

    derived: ClassVar[tuple[str, ...]] = ("n_key_heads", "n_value_heads", "value_dim")

    def resolve(self, d_model: int) -> "ResolvedGatedDelta":
        """With the heads' numbers and the values' width written out."""
        n_key_heads = self.n_key_heads or max(1, d_model // self.key_dim)
        return filled_in(
            ResolvedGatedDelta,
            self,
            n_key_heads=n_key_heads,
            n_value_heads=self.n_value_heads or n_key_heads,
            value_dim=self.value_dim or 2 * self.key_dim,
        )


class ResolvedGatedDelta(GatedDelta):
    """The gated delta rule with every derived value filled in."""

    n_key_heads: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    n_value_heads: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    value_dim: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]

    @property
    def key_width(self) -> int:
        """Of all key heads together."""
        return self.n_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Of all value heads together."""
        return self.n_value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    def _projections(self, d_model: int) -> int:
        """Queries, keys, values, the gate, beta and the decay; the output."""
        return d_model * (self.conv_width + 2 * self.value_width + 2 * self.n_value_heads)

    def describe(self) -> dict[str, str]:
        """Heads and widths of keys and values."""
        keys, values = f"{self.n_key_heads}x{self.key_dim}", f"{self.n_value_heads}x{self.value_dim}"
        return {"mixer": f"{self.kind} {keys} keys, {values} values"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections, the convolution, and per value head its decay."""
        own = self.conv_width * self.taps + 2 * self.n_value_heads
        return {"mixer": self._projections(site.d_model) + own, "norms": self.value_dim}

    def flops(self, site: Site, seq_len: int, counting: Counting) -> dict[str, float]:
        """A step reads the state at k, writes to it at k and reads it at q; chunks do the same by larger products.

        The inverse of a chunk's triangular matrix is no product and is not counted: Q^2 / 3 of a token and head, below
        2% of the rest at published widths.
        """
        Hk, Hv, K, V = self.n_key_heads, self.n_value_heads, self.key_dim, self.value_dim
        scan = seq_len * 6 * Hv * K * V
        if counting != "visible":
            n, Q = chunking(seq_len)
            scan = n * Q * (4 * Hk * Q * K + Hv * (2 * Q * K + 4 * Q * V + 6 * K * V))
        return {"mixer": scan + seq_len * (2 * self._projections(site.d_model) + 2 * self.taps * self.conv_width)}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The convolution's last inputs, and a matrix per value head."""
        shape = (self.n_value_heads, self.key_dim, self.value_dim)
        return StateTensor("conv", (self.taps - 1, self.conv_width)), StateTensor("scan", shape, float32=True)


class ShortConv(Component):
    """W (C * conv(B * x)): a convolution over a few tokens between two gates B and C that the input sets (LFM2)."""

    kind: Literal["short_conv"] = "short_conv"  # pyright: ignore[reportIncompatibleVariableOverride]
    taps: Taps = 3
    """Tokens that the convolution sees."""
    bias: bool = False
    """Biases on all projections and on the convolution."""

    def describe(self) -> dict[str, str]:
        """The convolution's reach."""
        return {"mixer": f"{self.kind} of {self.taps}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections of x and of both gates, the convolution, the output projection."""
        return {"mixer": site.d_model * (4 * (site.d_model + self.bias) + self.taps + self.bias)}

    def flops(self, site: Site, seq_len: int, counting: Counting) -> dict[str, float]:
        """The same in every counting."""
        return {"mixer": 2 * site.d_model * (4 * site.d_model + self.taps) * seq_len}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The convolution's last inputs."""
        return (StateTensor("conv", (self.taps - 1, site.d_model)),)


class NoMixer(Absent):
    """No recurrent mixer in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


Mixer = Annotated[Mamba2 | GatedDelta | ShortConv | NoMixer, Field(discriminator="kind")]
ResolvedMixer = Annotated[ResolvedMamba2 | ResolvedGatedDelta | ShortConv | NoMixer, Field(discriminator="kind")]
