"""Gated delta rule, a recurrent mixer."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.component import Mixer, ProjectionShape, RoleName, Site, StateTensor, divide_evenly
from archlab.config.components.recurrent import GatedRMSNorm, KernelSize, chunking, convolution, gated, scanning
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Positive, Width


class GatedDelta(Mixer):
    """Gated delta rule (Yang 2024). At each token, the state of a head first decays. Then the value v' that the state
    stores for the key k is replaced by (1 - beta) v' + beta v."""

    kind: Literal["gated_delta"] = "gated_delta"
    display_name: ClassVar[str] = "gated delta"
    value_expansion: ClassVar[int] = 2
    """Default of value_dim, divided by key_dim."""
    n_key_heads: Derived[Heads] = DERIVED
    """Number of query heads, and also of key heads. null: d_model / key_dim, rounded down; at least one."""
    n_value_heads: Derived[Heads] = DERIVED
    """Number of value heads, each with its own state. One key head serves several consecutive value heads. null:
    n_key_heads."""
    key_dim: Width = 128
    """Width of one query or key, and number of rows of each head's state."""
    value_dim: Derived[Width] = DERIVED
    """Width of one value, and number of columns of each head's state. null: 2 key_dim."""
    taps: KernelSize = 4
    """Kernel size of the convolution of queries, keys and values: the number of tokens that it sees, including the
    current token."""
    negative_eigenvalues: bool = False
    """Whether beta ranges from 0 to 2 instead of 0 to 1. A beta above 1 can reverse the sign of a stored value
    (Grazzi 2024)."""
    norm_eps: Positive = 1e-6
    """Small number added to the mean square of a head's output before the square root, in the output norm."""

    def resolve(self, d_model: int) -> Self:
        n_key_heads = self.n_key_heads or max(1, d_model // self.key_dim)
        derived = {
            "n_key_heads": n_key_heads,
            "n_value_heads": self.n_value_heads or n_key_heads,
            "value_dim": self.value_dim or self.value_expansion * self.key_dim,
        }
        return self.model_copy(update=derived)

    @property
    def key_width(self) -> int:
        return self.n_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.n_value_heads * self.value_dim

    @property
    def decay_width(self) -> int:
        """Number of decays per token."""
        return self.n_value_heads

    @property
    def conv_width(self) -> int:
        return sum(self.conv_widths)

    @property
    def conv_widths(self) -> tuple[int, ...]:
        return self.key_width, self.key_width, self.value_width

    def describe(self) -> dict[str, str]:
        keys, values = f"{self.n_key_heads}x{self.key_dim}", f"{self.n_value_heads}x{self.value_dim}"
        return {"mixer": f"{self.kind} {keys} keys, {values} values"}

    def parameters(self, site: Site) -> dict[str, int]:
        return {"mixer": self.in_projections(site) + self.vectors(site), "norms": self.value_dim}

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "convolution", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        key, value, heads = self.key_width, self.value_width, self.n_value_heads
        widths = {"q": key, "k": key, "v": value, "gate": value, "beta": heads, "decay": heads}
        inputs = {name: ProjectionShape(site.d_model, d_out) for name, d_out in widths.items()}
        return {**inputs, "out": ProjectionShape(value, site.d_model, "mixed")}

    def vectors(self, site: Site) -> int:
        return self.conv_width * self.taps + self.n_value_heads + self.decay_width

    def share(self, tensor: int) -> Self:
        """Return the mixer with a fraction of its key heads, and with the value heads that belong to these key
        heads."""
        n_key_heads = divide_evenly(self.n_key_heads, tensor, "key heads of the mixer")
        return self.model_copy(update={"n_key_heads": n_key_heads, "n_value_heads": self.n_value_heads // tensor})

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations of the mixer. For a single token, the state is read at k, updated at k and read at q.
        For more tokens, larger matrix products over chunks of tokens are used instead.

        The inverse of a chunk's triangular matrix is not counted, because it is not a matrix product. For chunks of Q
        tokens, the inverse takes about Q^2 FLOPs per token and head, less than 3% of the counted FLOPs at published
        widths.
        """
        Hv, K, V = self.n_value_heads, self.key_dim, self.value_dim
        n, Q = chunking(model_pass.tokens)
        scan = model_pass.tokens * 6 * Hv * K * V
        if model_pass.counting != "visible":
            scan = n * (self.comparing(Q) + Q * Hv * (2 * Q * K + 4 * Q * V + 6 * K * V))
        conv, states = self.state(site, 0)
        yield from self.inputs(site, model_pass)
        yield convolution(model_pass, self.conv_width, self.taps, conv)
        yield from model_pass.activation("mixer", "silu", self.conv_width)
        yield model_pass.element_wise("norms", "mixer", 2 * self.key_width, flops=4)
        yield from self.forgetting(model_pass)
        yield scanning(
            model_pass,
            scan,
            states,
            self.conv_width + Hv + self.decay_width,
            self.value_width,
            saved=self.saved_by_scan(model_pass.tokens),
        )
        yield from self.gating(model_pass)
        yield model_pass.product("mixer", self.value_width, site.d_model)

    def inputs(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the projections of the input."""
        yield model_pass.product("mixer", site.d_model, self.conv_width + self.value_width + 2 * self.n_value_heads)

    def forgetting(self, model_pass: Pass) -> Iterator[Operation]:
        """Yield the computation of beta and of the decays."""
        Hv = self.n_value_heads
        yield model_pass.element_wise("element-wise", "mixer", Hv, flops=12, weights=2 * Hv)

    def comparing(self, Q: int) -> int:
        """Return the FLOPs of the products of the queries and keys of a chunk of Q tokens."""
        return 4 * self.n_key_heads * Q * Q * self.key_dim

    def saved_by_scan(self, tokens: int) -> int:
        """Return the number of values that training stores for the scan of one sequence, all in float32.

        For every token, they are queries, keys, values and the scales of heads. For every chunk, they are the decays
        between tokens, the products of keys, the system and its inverse, and the weights. Each chunk also stores its
        queries, keys, values and changes as products read them. Each chunk except the first also stores the state
        before it.
        """
        Hk, Hv, K, V = self.n_key_heads, self.n_value_heads, self.key_dim, self.value_dim
        n, Q = chunking(tokens)
        saved = tokens * (self.conv_width + 2 * Hk + 3 * Hv)
        saved += n * (Q * (5 * Hv * Q + 2 * Hk * Q + 3 * Hv + 6 * Hk * K + 3 * Hv * V + 4 * Hv * K) + Hv * K * V)
        return saved - 2 * Hv * Q * K

    def gating(self, model_pass: Pass) -> Iterator[Operation]:
        """Yield the norm of the output and the output gate."""
        return gated(model_pass, GatedRMSNorm(), self.value_width, self.value_dim)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        shape = (self.n_value_heads, self.key_dim, self.value_dim)
        return StateTensor("conv", (self.taps - 1, self.conv_width)), StateTensor("scan", shape, float32=True)
