"""Time of passes on a device: the best case from its peaks (Williams 2009), or an estimate from measured operations."""

from collections.abc import Iterable
from typing import Literal

from archlab.config.components.work import OF_MATRICES, OperationKind
from archlab.config.core.base import Base
from archlab.pricing.hardware import Hardware, NumberFormat, Rate, Rates
from archlab.pricing.work import Work, matrix_flops_per_byte


class RooflineEstimate(Base):
    """Shortest possible time of one pass on one device, and its bottleneck."""

    seconds: float
    tokens_per_second: float
    """Tokens per second. In a decoding step, the tokens of all sequences are counted together."""
    flops_per_byte: float
    """FLOPs of matrix products per byte, over the whole pass."""
    ridge: float
    """FLOPs per byte at which computing takes as long as memory traffic. Below it, memory is the bottleneck."""
    limit: Literal["compute", "memory"]
    """Bottleneck that takes most of the time."""
    of_peak: float
    """FLOPs of matrix products, divided by the FLOPs that the device could do in the same time."""
    seconds_by_kind: dict[OperationKind, float]


def ideal(passed: Iterable[Work], hardware: Hardware, number_format: NumberFormat, tokens: int) -> RooflineEstimate:
    """Return the best case (roofline) for a pass.

    Each kind of operation takes the longer of two times: its matrix FLOPs at peak speed, or its bytes at full memory
    bandwidth. Nothing else takes time, and no two kinds overlap. A compiled model moves fewer bytes than are counted,
    because a compiler fuses operations. A real device reaches neither its peak nor its full bandwidth.
    """
    passed = list(passed)
    peak, bandwidth = hardware.speed(number_format), hardware.bandwidth
    computing, moving, flops = 0.0, 0.0, 0.0
    by_kind: dict[OperationKind, float] = {}
    for work in passed:
        matrix_flops = work.flops if work.kind in OF_MATRICES else 0.0
        compute, memory = matrix_flops / peak, work.n_bytes / bandwidth
        by_kind[work.kind] = max(compute, memory)
        computing += compute if compute > memory else 0.0
        moving += memory if compute <= memory else 0.0
        flops += matrix_flops
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
    """Time of one pass on a machine whose operations were timed.

    Each kind of operation has a price per FLOP, per byte and per call.
    """

    seconds: float
    tokens_per_second: float
    """Tokens per second. In a decoding step, the tokens of all sequences are counted together."""
    seconds_by_kind: dict[OperationKind, float]
    latency: float
    """Seconds of fixed cost per operation, however little it computes. Depth adds to it, but width does not."""


def untimed(passed: Iterable[Work], rates: Rates) -> list[OperationKind]:
    """Return the kinds of operations in this pass that no measured model had."""
    return [work.kind for work in passed if work.kind not in rates.by_kind]


def predicted(passed: Iterable[Work], rates: Rates, tokens: int) -> MeasuredEstimate:
    """Return the estimated time of a pass. It must not have untimed kinds of operations."""
    passed = list(passed)
    by_kind: dict[OperationKind, float] = {work.kind: _seconds(work, rates.by_kind[work.kind]) for work in passed}
    seconds = sum(by_kind.values())
    latency = sum(work.count * rates.by_kind[work.kind].per_operation for work in passed)
    return MeasuredEstimate(
        seconds=seconds, tokens_per_second=tokens / seconds, seconds_by_kind=by_kind, latency=latency
    )


def features(work: Work) -> tuple[float, float, float, float]:
    """Return the amounts that have a price, in the order of the fields of `Rate`.

    Only FLOPs of matrix products count. Other operations compute little per number, so moving the numbers takes the
    time.
    """
    flops = work.flops if work.kind in OF_MATRICES else 0.0
    return flops, work.n_bytes, work.large_bytes, float(work.count)


def _seconds(work: Work, rate: Rate) -> float:
    return sum(price * amount for price, amount in zip(dict(rate).values(), features(work), strict=True))
