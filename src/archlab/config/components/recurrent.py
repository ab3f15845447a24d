"""What recurrent mixers have in common: convolutions over a few tokens, scans chunk by chunk, norms with a gate."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.components.component import StateTensor
from archlab.config.components.norm import AnyNorm, NoNorm
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import Positive

CHUNK = 64
"""Tokens that a scan mixes at once by matrix products, at most; between chunks it hands on a state."""

KernelSize = Annotated[int, Field(ge=2, le=1000)]
"""Of a causal convolution: how many tokens it sees, its own among them. Published models have up to 7."""


def chunking(seq_len: int) -> tuple[int, int]:
    """Number of chunks and tokens in each, as few and then as short as can be; the last one may not be full."""
    n = max(1, math.ceil(seq_len / CHUNK))
    return n, max(1, math.ceil(seq_len / n))


class GatedRMSNorm(AnyNorm):
    """RMS norm of a mixer's output over each of its groups of heads, with a weight per feature."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    display_name: ClassVar[str] = "RMSNorm"
    eps: Positive = 1e-5
    """Added to the mean square before the root."""
    gate: Literal["before", "after"] = "before"
    """before: the norm is of what the gate has multiplied (Mamba 2); after: the gate multiplies what is normed
    (Falcon-H1)."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """What goes in, and what the weight multiplies."""
        return 2

    def n_parameters(self, width: int) -> int:
        """A weight per feature."""
        return width


GatedNorm = Annotated[GatedRMSNorm | NoNorm, Field(discriminator="kind")]


def convolution(this: Pass, channels: int, taps: int, kept: StateTensor, *, bias: bool = False) -> Operation:
    """Over so many tokens, each channel by itself."""
    return Operation(
        "convolutions",
        "mixer",
        flops=2 * this.rows * channels * taps,
        weights=channels * (taps + bias) * this.bytes_each,
        kept=this.texts * kept.n_bytes(this.bytes_each) if this.is_cached else 0.0,
        moved=2 * this.rows * channels * this.bytes_each,
        saved=this.texts * (this.tokens + taps - 1) * channels * this.bytes_each,
    )


def scanning(
    this: Pass, flops: float, kept: StateTensor, read: int, written: int, *, weights: int = 0, saved: float
) -> Operation:
    """`flops` and `saved` numbers of one text; `read` and `written` numbers per token."""
    states = this.texts * kept.n_bytes(this.bytes_each) if this.is_cached else 0.0
    return Operation(
        "scans",
        "mixer",
        flops=this.texts * flops,
        weights=weights * this.bytes_each,
        kept=states,
        moved=this.rows * (read + written) * this.bytes_each + states,  # what is read is written back
        saved=this.texts * saved * FLOAT32_BYTES,
    )


def gated(this: Pass, norm: AnyNorm, width: int, weights: int) -> Iterator[Operation]:
    """x silu(z), normed. In float32 z, its silu and what that multiplies are kept."""
    saved = 3 * this.rows * width * FLOAT32_BYTES
    yield this.element_wise("activations", "mixer", width, flops=5, read=2)._replace(saved=saved)
    yield from this.norm(norm, width, weights)
