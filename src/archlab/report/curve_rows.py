"""Curves of a study's runs as the rows that the charts draw: lines of arms, runs that diverged."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from archlab.config.outcomes import Unit
from archlab.cost.units import count
from archlab.report.rows import Row, labels
from archlab.study.formatting import amount, span
from archlab.study.record import ArmSummary, Curve, StudySummary


class Quantity(NamedTuple):
    """What is drawn over the training tokens."""

    title: str
    unit: Unit
    of: Callable[[Curve], tuple[Sequence[int], Sequence[float]]]
    """Training tokens and values of one run."""
    is_logarithmic: bool = False

    def text(self, value: float) -> str:
        """As our tables write it."""
        return amount(value, self.unit)


def mean_rows(summary: StudySummary, drawn: Quantity) -> list[Row]:
    """Per arm and training length: mean, lowest and highest over the seeds that finished."""
    return [
        row
        for arm, label in zip(summary.arms, labels(summary).values(), strict=True)
        for row in _means(arm, label, drawn)
    ]


def _means(arm: ArmSummary, label: str, drawn: Quantity) -> Iterator[Row]:
    """Only where all seeds have a value: `eval_every` may change between one seed and the next."""
    at: dict[int, list[float]] = {}
    for curve in arm.curves:
        if curve.seed not in arm.diverged:
            for tokens, value in zip(*drawn.of(curve), strict=True):
                at.setdefault(tokens, []).append(value)
    finished = max(map(len, at.values()), default=0)
    shared = {tokens: values for tokens, values in at.items() if len(values) == finished}
    for tokens, values in sorted(shared.items()):
        mean, low, high = sum(values) / len(values), min(values), max(values)
        seeds = span(drawn.text(low), drawn.text(high))
        yield {
            "arm": label,
            "tokens": tokens,
            "mean": mean,
            "low": low,
            "high": high,
            "text": f"{drawn.text(mean)} at {count(tokens)} tokens, seeds {seeds}",
        }


def diverged_rows(summary: StudySummary, drawn: Quantity) -> list[Row]:
    """The curves of the runs that diverged, their last points marked."""
    named = labels(summary)
    return [
        {
            "arm": named[arm.name],
            "seed": curve.seed,
            "tokens": tokens,
            "mean": value,
            "low": value,
            "high": value,
            "last": tokens == drawn.of(curve)[0][-1],
            "text": f"seed {curve.seed} diverged after {count(drawn.of(curve)[0][-1])} tokens",
        }
        for arm in summary.arms
        for curve in arm.curves
        if curve.seed in arm.diverged
        for tokens, value in zip(*drawn.of(curve), strict=True)
    ]
