"""How long passes take on a device: at best, by its peaks (Williams 2009), or by what operations took when measured."""

from collections.abc import Iterable
from typing import Literal

from archlab.config.components.work import OF_MATRICES, OperationKind
from archlab.config.core.base import Base
from archlab.pricing.hardware import Hardware, NumberFormat, Rate, Rates
from archlab.pricing.work import Work, matrix_flops_per_byte


class RooflineEstimate(Base):
    """Time of one pass on one device at best, and what limits it."""

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
    seconds_by_kind: dict[OperationKind, float]


def ideal(passed: Iterable[Work], hardware: Hardware, number_format: NumberFormat, tokens: int) -> RooflineEstimate:
    """Each kind of operation takes its matrix FLOPs at the peak or its bytes at the memory's speed, what is longer.

    Nothing else takes time, and no two kinds overlap. What a compiler fuses is not known here, so a
    compiled model moves fewer bytes than are counted; a real one reaches neither peak nor the memory's speed.
    """
    passed = list(passed)
    peak, bandwidth = hardware.speed(number_format), hardware.bandwidth
    computing, moving, flops = 0.0, 0.0, 0.0
    by_kind: dict[OperationKind, float] = {}
    for work in passed:
        of_matrices = work.flops if work.kind in OF_MATRICES else 0.0
        compute, memory = of_matrices / peak, work.n_bytes / bandwidth
        by_kind[work.kind] = max(compute, memory)
        computing += compute if compute > memory else 0.0
        moving += memory if compute <= memory else 0.0
        flops += of_matrices
    seconds = computing + moving
    return RooflineEstimate(
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        flops_per_byte=matrix_flops_per_byte(passed),
        ridge=peak / bandwidth,
        limit="compute" if computing > moving else "memory",
        of_peak=flops / peak / seconds,
        seconds_by_kind=by_kind,
    )


class MeasuredEstimate(Base):
    """Time of one pass on a machine whose operations were timed: a price for each FLOP, byte and call, by kind."""

    seconds: float
    tokens_per_second: float
    """Of a decoding step: of all texts together."""
    seconds_by_kind: dict[OperationKind, float]
    latency: float
    """Seconds that its operations take however little each computes: what depth costs, and width does not."""


def untimed(passed: Iterable[Work], rates: Rates) -> list[OperationKind]:
    """Kinds of operation in this pass that no model had which ran."""
    return [work.kind for work in passed if work.kind not in rates.by_kind]


def predicted(passed: Iterable[Work], rates: Rates, tokens: int) -> MeasuredEstimate:
    """Of a pass without untimed kinds."""
    passed = list(passed)
    by_kind: dict[OperationKind, float] = {work.kind: _seconds(work, rates.by_kind[work.kind]) for work in passed}
    seconds = sum(by_kind.values())
    latency = sum(work.count * rates.by_kind[work.kind].per_operation for work in passed)
    return MeasuredEstimate(
        seconds=seconds, tokens_per_second=tokens / seconds, seconds_by_kind=by_kind, latency=latency
    )


def features(work: Work) -> tuple[float, float, float, float]:
    """What has a price, in the order of `Rate`. What computes little with each number takes its time to move it."""
    flops = work.flops if work.kind in OF_MATRICES else 0.0
    return flops, work.n_bytes, work.large_bytes, float(work.count)


def _seconds(work: Work, rate: Rate) -> float:
    return sum(price * amount for price, amount in zip(dict(rate).values(), features(work), strict=True))
