"""What recurrent mixers have in common: convolutions over a few tokens, scans chunk by chunk, norms with a gate."""

import math
from typing import Annotated, Literal

from pydantic import Field

from archlab.config.base import Base, Positive
from archlab.config.norm import NoNorm

CHUNK = 64
"""Tokens that a scan mixes at once by matrix products, at most; between chunks it hands on a state."""

KernelSize = Annotated[int, Field(ge=2, le=1000)]
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
