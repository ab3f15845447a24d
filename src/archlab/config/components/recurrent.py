"""Parts that recurrent mixers share: convolutions over a few tokens, scans in chunks, and gated norms."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.components.component import StateTensor
from archlab.config.components.norm import AnyNorm, NoNorm
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import Positive

CHUNK = 64
"""Largest number of tokens in a chunk. A scan processes a chunk with matrix products, and passes the state on to the
next chunk."""

KernelSize = Annotated[int, Field(ge=2, le=1000)]
"""Kernel size of a causal convolution: the number of tokens that it sees, including the current token. Published models
have kernel sizes of up to 7."""


def chunking(seq_len: int) -> tuple[int, int]:
    """Return the number of chunks and the number of tokens per chunk. There are as few chunks as possible with at most
    CHUNK tokens each. Tokens are divided evenly among them, but the last chunk may be smaller."""
    n = max(1, math.ceil(seq_len / CHUNK))
    return n, max(1, math.ceil(seq_len / n))


class GatedRMSNorm(AnyNorm):
    """RMS norm of a mixer's output over each group of heads, with one weight per feature."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    display_name: ClassVar[str] = "RMSNorm"
    eps: Positive = 1e-5
    """Small number added to the mean square before the square root."""
    gate: Literal["before", "after"] = "before"
    """Order of the gate and the norm. `before`: the gate multiplies the input of the norm (Mamba 2). `after`: the gate
    multiplies the output of the norm (Falcon-H1)."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """Return 2, because the input and the value that the weight multiplies are stored."""
        return 2

    def n_parameters(self, width: int) -> int:
        return width


GatedNorm = Annotated[GatedRMSNorm | NoNorm, Field(discriminator="kind")]


def convolution(model_pass: Pass, channels: int, taps: int, kept: StateTensor, *, bias: bool = False) -> Operation:
    """Return the operation of a convolution over `taps` tokens, computed separately for each channel."""
    return Operation(
        "convolutions",
        "mixer",
        flops=2 * model_pass.rows * channels * taps,
        weights=channels * (taps + bias) * model_pass.bytes_each,
        kept=model_pass.texts * kept.n_bytes(model_pass.bytes_each) if model_pass.is_cached else 0.0,
        moved=2 * model_pass.rows * channels * model_pass.bytes_each,
        saved=model_pass.texts * (model_pass.tokens + taps - 1) * channels * model_pass.bytes_each,
    )


def scanning(
    model_pass: Pass, flops: float, kept: StateTensor, read: int, written: int, *, weights: int = 0, saved: float
) -> Operation:
    """Return the operation of a scan. `flops` is the number of FLOPs and `saved` the number of stored values per
    sequence. `read` and `written` are numbers of values per token."""
    states = model_pass.texts * kept.n_bytes(model_pass.bytes_each) if model_pass.is_cached else 0.0
    return Operation(
        "scans",
        "mixer",
        flops=model_pass.texts * flops,
        weights=weights * model_pass.bytes_each,
        kept=states,
        moved=model_pass.rows * (read + written) * model_pass.bytes_each + states,  # the state is read and written back
        saved=model_pass.texts * saved * FLOAT32_BYTES,
    )


def gated(model_pass: Pass, norm: AnyNorm, width: int, weights: int) -> Iterator[Operation]:
    """Yield the operations of the gate, x silu(z), and of the norm. Training stores z, silu(z) and x in float32."""
    saved = 3 * model_pass.rows * width * FLOAT32_BYTES
    yield model_pass.element_wise("activations", "mixer", width, flops=5, read=2)._replace(saved=saved)
    yield from model_pass.norm(norm, width, weights)
