"""Kimi delta attention, a recurrent mixer."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from archlab.config.components.component import ProjectionShape, RoleName, Site
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.recurrent import GatedRMSNorm, chunking
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Positive, Width


def padded_chunk(size: int) -> int:
    """Return the smallest power of two that is at least `size`, a number of tokens."""
    return 2 ** (size - 1).bit_length()


class KimiDelta(GatedDelta):
    """Kimi delta attention (KDA, Kimi Team 2025). It is the gated delta rule, except that each row of a state decays at
    its own rate, and the output gate is a sigmoid."""

    kind: Literal["kimi_delta"] = "kimi_delta"  # pyright: ignore[reportIncompatibleVariableOverride]
    display_name: ClassVar[str] = "Kimi delta"
    value_expansion: ClassVar[int] = 1
    value_dim: Derived[Width] = DERIVED
    """Width of one value, and number of columns of each head's state. null: key_dim."""
    low_rank: bool = True
    """Whether the decays and the output gate are each computed from a vector of width value_dim. Otherwise they are
    computed from the input directly."""
    decay_bound: Positive | None = None
    """Bound of the decays, which are then at least exp(-decay_bound): exp(-decay_bound sigmoid(A x)) instead of
    exp(-A softplus(x)). null: no bound."""

    @property
    def decay_width(self) -> int:
        return self.n_value_heads * self.key_dim

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", *(("narrow",) if self.low_rank else ()), "convolution", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        shapes = super().projections(site)
        for name, d_out in (("gate", self.value_width), ("decay", self.decay_width)):
            del shapes[name]
            if self.low_rank:
                shapes[f"{name}.down"] = ProjectionShape(site.d_model, self.value_dim)
                shapes[f"{name}.up"] = ProjectionShape(self.value_dim, d_out, "latent")
            else:
                shapes[name] = ProjectionShape(site.d_model, d_out)
        return shapes

    def inputs(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        narrow, gates = self.value_dim, self.value_width + self.decay_width
        direct = self.conv_width + self.n_value_heads
        yield model_pass.product("mixer", site.d_model, direct + (2 * narrow if self.low_rank else gates))
        if self.low_rank:
            yield model_pass.product("mixer", narrow, self.value_width)
            yield model_pass.product("mixer", narrow, self.decay_width)

    def forgetting(self, model_pass: Pass) -> Iterator[Operation]:
        Hv = self.n_value_heads
        yield model_pass.element_wise("element-wise", "mixer", Hv, flops=4, weights=Hv)
        yield model_pass.element_wise("element-wise", "mixer", self.decay_width, flops=8, weights=self.decay_width)

    def comparing(self, Q: int) -> int:
        """Return the FLOPs of the products of the queries and keys of a chunk of Q tokens. The products of each level
        (`model/kimi_delta.py`) have twice as many FLOPs as those of the level before."""
        padded = padded_chunk(Q)
        return 4 * self.n_value_heads * padded * (padded - 1) // 2 * self.key_dim

    def gating(self, model_pass: Pass) -> Iterator[Operation]:
        """Yield the norm of the output and the output gate. Training stores sigmoid(z) and x in float32."""
        saved = 2 * model_pass.rows * self.value_width * FLOAT32_BYTES
        gate = model_pass.element_wise("activations", "mixer", self.value_width, flops=5, read=2)
        yield gate._replace(saved=saved)
        yield from model_pass.norm(GatedRMSNorm(), self.value_width, self.value_dim)

    def saved_by_scan(self, tokens: int) -> int:
        """Return the number of values that training stores for the scan of one sequence, all in float32.

        For every token, they are queries, keys, values, and the scales of heads and of rows. For every chunk, they are
        the products of keys, the system and its inverse, and the weights. Each chunk also stores its queries, keys,
        values and changes as products read them. For every level of a chunk, they are two decays, and queries and keys
        as products read them. Each chunk except the first also stores the state before it.
        """
        Hk, Hv, K, V = self.n_key_heads, self.n_value_heads, self.key_dim, self.value_dim
        n, Q = chunking(tokens)
        padded = padded_chunk(Q)
        n_levels = padded.bit_length() - 1
        saved = tokens * (self.conv_width + 2 * Hk + Hv + 2 * Hv * K)
        saved += n * (Hv * (padded**2 + 3 * Q**2) + padded * (2 * Hk * K + 5 * n_levels * Hv * K // 2))
        saved += n * (Q * (2 * Hk * K + Hv + 7 * Hv * K + 3 * Hv * V) + Hv * K * V)
        return saved - 2 * Hv * Q * K
