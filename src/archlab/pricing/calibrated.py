"""How long passes take on a machine whose operations were timed: a price for each FLOP, byte and call, by kind."""

from collections.abc import Iterable

from archlab.config.components.work import OF_MATRICES, Kind
from archlab.config.core.base import Base, NonNegative
from archlab.pricing.work import Work


class Rate(Base):
    """Of operations of one kind, in seconds; they add up."""

    per_flop: NonNegative
    """Of matrices."""
    per_byte: NonNegative
    per_large_byte: NonNegative
    """More than `per_byte`, in tensors for which memory is asked of the system."""
    per_operation: NonNegative


class Rates(Base):
    """Of a pass in one number format: what `archlab hardware --measure` fitted to models that ran."""

    by_kind: dict[Kind, Rate]


class Prediction(Base):
    """Of one pass."""

    seconds: float
    tokens_per_second: float
    """Of a decoding step: of all texts together."""
    seconds_by_kind: dict[Kind, float]
    latency: float
    """Seconds that its operations take however little each computes: what depth costs, and width does not."""


def untimed(passed: Iterable[Work], rates: Rates) -> list[Kind]:
    """Kinds of operation in this pass that no model had which ran."""
    return [work.kind for work in passed if work.kind not in rates.by_kind]


def predicted(passed: Iterable[Work], rates: Rates, tokens: int) -> Prediction:
    """Of a pass without untimed kinds."""
    passed = list(passed)
    by_kind: dict[Kind, float] = {work.kind: _seconds(work, rates.by_kind[work.kind]) for work in passed}
    seconds = sum(by_kind.values())
    latency = sum(work.count * rates.by_kind[work.kind].per_operation for work in passed)
    return Prediction(seconds=seconds, tokens_per_second=tokens / seconds, seconds_by_kind=by_kind, latency=latency)


def features(work: Work) -> tuple[float, float, float, float]:
    """What has a price, in the order of `Rate`. What computes little with each number takes its time to move it."""
    flops = work.flops if work.kind in OF_MATRICES else 0.0
    return flops, work.n_bytes, work.large_bytes, float(work.count)


def _seconds(work: Work, rate: Rate) -> float:
    return sum(price * amount for price, amount in zip(dict(rate).values(), features(work), strict=True))
