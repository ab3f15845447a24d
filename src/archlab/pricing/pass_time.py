"""Time of a pass on a device: the best case (roofline, Williams 2009), or an estimate from measured operations."""

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
    """Tokens per second. In a decoding step, the tokens of all sequences count."""
    flops_per_byte: float
    """FLOPs of all matrix products in the pass, divided by all bytes that are read or written."""
    ridge: float
    """FLOPs per byte of the device: peak speed divided by memory bandwidth. Below this value, memory is the
    bottleneck."""
    limit: Literal["compute", "memory"]
    """Bottleneck: the resource that determines most of the time."""
    of_peak: float
    """Achieved fraction of the peak speed: FLOPs of matrix products, divided by the FLOPs that the device could compute
    in `seconds` at peak speed."""
    seconds_by_kind: dict[OperationKind, float]


def ideal(pass_work: Iterable[Work], hardware: Hardware, number_format: NumberFormat, tokens: int) -> RooflineEstimate:
    """Return the best case (roofline) for a pass.

    The time of each kind of operation is the longer of two times: that of its matrix FLOPs at peak speed, and that of
    its bytes at full memory bandwidth. The times of all kinds are added.

    The bytes are those of a model that is not compiled; a compiler fuses operations, which then move fewer bytes. A
    real device reaches neither its peak speed nor its full bandwidth.
    """
    pass_work = list(pass_work)
    peak, bandwidth = hardware.speed(number_format), hardware.bandwidth
    computing, moving, flops = 0.0, 0.0, 0.0
    by_kind: dict[OperationKind, float] = {}
    for work in pass_work:
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
        flops_per_byte=matrix_flops_per_byte(pass_work),
        ridge=peak / bandwidth,
        limit="compute" if computing > moving else "memory",
        of_peak=flops / peak / seconds,
        seconds_by_kind=by_kind,
    )


class MeasuredEstimate(Base):
    """Estimated time of one pass, from rates that were measured on this machine (see `Rate`).

    Each kind of operation takes time per FLOP, per byte and per operation.
    """

    seconds: float
    tokens_per_second: float
    """Tokens per second. In a decoding step, the tokens of all sequences count."""
    seconds_by_kind: dict[OperationKind, float]
    latency: float
    """Sum of the fixed times of all operations, in seconds. The fixed time of an operation does not depend on its size.

    The sum grows with the number of layers, but not with their width.
    """


def untimed(pass_work: Iterable[Work], rates: Rates) -> list[OperationKind]:
    """Return the kinds of operations in a pass that have no measured rate, because no measured model contains them."""
    return [work.kind for work in pass_work if work.kind not in rates.by_kind]


def predicted(pass_work: Iterable[Work], rates: Rates, tokens: int) -> MeasuredEstimate:
    """Return the estimated time of a pass. `rates` must contain all its kinds of operations (see `untimed`)."""
    pass_work = list(pass_work)
    by_kind: dict[OperationKind, float] = {work.kind: _seconds(work, rates.by_kind[work.kind]) for work in pass_work}
    seconds = sum(by_kind.values())
    latency = sum(work.count * rates.by_kind[work.kind].per_operation for work in pass_work)
    return MeasuredEstimate(
        seconds=seconds, tokens_per_second=tokens / seconds, seconds_by_kind=by_kind, latency=latency
    )


def features(work: Work) -> tuple[float, float, float, float]:
    """Return the quantities that are multiplied by the fields of `Rate`, in the order of these fields.

    Only FLOPs of matrix products count. The time of other operations is determined by the bytes that they read and
    write.
    """
    flops = work.flops if work.kind in OF_MATRICES else 0.0
    return flops, work.n_bytes, work.large_bytes, float(work.count)


def _seconds(work: Work, rate: Rate) -> float:
    return sum(price * amount for price, amount in zip(dict(rate).values(), features(work), strict=True))
