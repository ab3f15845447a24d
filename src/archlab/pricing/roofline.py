"""How long passes take at best on a device, and what limits them (Williams 2009)."""

from collections.abc import Iterable
from typing import Literal

from archlab.config.components.work import OF_MATRICES, Kind
from archlab.config.core.base import Base
from archlab.pricing.hardware import Hardware, NumberFormat
from archlab.pricing.work import Work, matrix_flops_per_byte


class Estimate(Base):
    """Of one pass, on one device."""

    seconds: float
    tokens_per_second: float
    """Of a decoding step: of all texts together."""
    flops_per_byte: float
    """Of the pass as a whole."""
    ridge: float
    """FLOPs per byte at which the device computes as fast as its memory delivers; with fewer, memory is the limit."""
    limit: Literal["compute", "memory"]
    """What more of the time goes to."""
    of_peak: float
    """FLOPs of matrix products in that time over those that the device could do."""
    seconds_by_kind: dict[Kind, float]


def ideal(passed: Iterable[Work], hardware: Hardware, number_format: NumberFormat, tokens: int) -> Estimate:
    """Each kind of operation takes its matrix FLOPs at the peak or its bytes at the memory's speed, what is longer.

    Nothing else takes time, and no two kinds overlap. What a compiler fuses is not known here, so a
    compiled model moves fewer bytes than are counted; a real one reaches neither peak nor the memory's speed.
    """
    passed = list(passed)
    peak, bandwidth = hardware.speed(number_format), hardware.bandwidth
    computing, moving, flops = 0.0, 0.0, 0.0
    by_kind: dict[Kind, float] = {}
    for work in passed:
        of_matrices = work.flops if work.kind in OF_MATRICES else 0.0
        compute, memory = of_matrices / peak, work.n_bytes / bandwidth
        by_kind[work.kind] = max(compute, memory)
        computing += compute if compute > memory else 0.0
        moving += memory if compute <= memory else 0.0
        flops += of_matrices
    seconds = computing + moving
    return Estimate(
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        flops_per_byte=matrix_flops_per_byte(passed),
        ridge=peak / bandwidth,
        limit="compute" if computing > moving else "memory",
        of_peak=flops / peak / seconds,
        seconds_by_kind=by_kind,
    )
