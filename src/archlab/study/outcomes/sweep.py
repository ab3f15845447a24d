"""Outcomes of one arm and seed over all values of the swept field, and the losses that they are made of."""

import math
from collections.abc import Mapping

from archlab.study.outcome_schema import BestLoss, BestRate, Outcome, Sensitivity
from archlab.study.record import SweepPoint
from archlab.study.runs import Ended

Swept = Mapping[str, Mapping[int, Mapping[float, Ended]]]
"""Arm -> seed -> value of the swept field -> run; only seeds whose runs have all ended."""


def from_sweep(outcome: Outcome, runs: Mapping[float, Ended]) -> float | None:
    """`runs`: by the value of the swept field, all that were asked for. None where the outcome cannot be told."""
    losses = {value: _loss(run) for value, run in runs.items()}
    best = min(losses, key=lambda value: losses[value])
    if not math.isfinite(losses[best]):
        return None
    match outcome:
        case BestLoss():
            return losses[best]
        case BestRate():
            return best
        case Sensitivity():
            starts = {value: _start(run) for value, run in runs.items()}
            return sum(min(losses[value], starts[value]) - losses[best] for value in runs) / len(runs)
        case _:
            raise TypeError(f"no sweep has a {type(outcome).__name__}")


def sweep_points(field: str, swept: Swept) -> list[SweepPoint]:
    """Arm by arm, values ascending."""
    return [
        SweepPoint(
            arm=arm,
            field=field,
            value=value,
            losses={seed: runs[value].summary.bits_per_byte for seed, runs in seeds.items()},
        )
        for arm, seeds in swept.items()
        for value in sorted(next(iter(seeds.values())))
    ]


def _loss(run: Ended) -> float:
    """Infinite where it diverged."""
    score = run.summary.bits_per_byte
    return math.inf if score is None else score


def _start(run: Ended) -> float:
    """Before the first update."""
    return next((m["bits_per_byte"] for m in run.metrics if "bits_per_byte" in m), math.inf)
