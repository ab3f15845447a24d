"""How long passes take on a machine whose operations were timed: a price for each FLOP, byte and call, by kind."""

from collections.abc import Iterable

from archlab.config.base import Base, NonNegative
from archlab.config.work import Kind
from archlab.cost.work import Work


class Rate(Base):
    """Of operations of one kind, in seconds; the three add up."""

    per_flop: NonNegative
    per_byte: NonNegative
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


def untimed(passed: Iterable[Work], rates: Rates) -> list[Kind]:
    """Kinds of operation in this pass that no model had which ran."""
    return [work.kind for work in passed if work.kind not in rates.by_kind]


def predicted(passed: Iterable[Work], rates: Rates, tokens: int) -> Prediction:
    """Of a pass without untimed kinds."""
    passed = list(passed)
    by_kind = {work.kind: _seconds(work, rates.by_kind[work.kind]) for work in passed}
    seconds = sum(by_kind.values())
    return Prediction(seconds=seconds, tokens_per_second=tokens / seconds, seconds_by_kind=by_kind)


def _seconds(work: Work, rate: Rate) -> float:
    return work.flops * rate.per_flop + work.n_bytes * rate.per_byte + work.count * rate.per_operation
