"""Outcomes that a run wrote while it trained; and those of one arm and seed over all values of the swept field."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from archlab.study.outcome_schema import (
    OF_EVERY_LAYER,
    Accuracy,
    BestLoss,
    BestRate,
    BitsPerByte,
    Gap,
    LargestGradient,
    OnTheWay,
    Outcome,
    Probe,
    Sensitivity,
    Spikes,
    TokensTo,
)
from archlab.study.record import SweepPoint
from archlab.study.runs import Ended
from archlab.training.run_folder import PROBES


def from_log(outcome: Outcome, run: Ended) -> float | None:
    """None where the run diverged, or never had what is asked for."""
    summary = run.summary
    if summary.status == "diverged":
        return None
    match outcome:
        case BitsPerByte():
            return summary.bits_per_byte
        case Accuracy():
            return summary.accuracy
        case Gap():
            assert summary.loss is not None
            assert summary.train_loss is not None
            return summary.loss - summary.train_loss
        case TokensTo():
            return _tokens_to(outcome.bits_per_byte, run)
        case OnTheWay():
            return _on_the_way(outcome.share, run)
        case Probe():
            return _probed(outcome, run)
        case LargestGradient():
            return max(_after_a_tenth(_gradients(run)), default=None)
        case Spikes():
            return float(summary.spikes)
        case _:
            raise TypeError(f"no log has a {type(outcome).__name__}")


def _tokens_to(wanted: float, run: Ended) -> float | None:
    points = [(m["tokens"], m["bits_per_byte"]) for m in run.metrics if "bits_per_byte" in m]
    for (before, worse), (after, loss) in pairwise(points):
        if loss <= wanted < worse:
            return before + (after - before) * (worse - wanted) / (worse - loss)
    return None


def _on_the_way(share: float, run: Ended) -> float | None:
    points = [(m["tokens"], m["bits_per_byte"]) for m in run.metrics if "bits_per_byte" in m]
    until = share * run.summary.tokens * (1 + 1e-9)  # an evaluation just there counts
    return next((loss for tokens, loss in reversed(points) if 0 < tokens <= until), None)


def _probed(outcome: Probe, run: Ended) -> float | None:
    """None also where no layer has such a number, and where a layer has none that must have one: it is not finite."""
    probes = [m[PROBES] for m in run.metrics if PROBES in m]
    found = probes[0 if outcome.at == "start" else -1].get(outcome.of) if probes else None
    if not isinstance(found, list):
        return found
    numbers = [number for number in found if number is not None]
    if outcome.of in OF_EVERY_LAYER and len(numbers) < len(found):
        return None
    match outcome.layers:
        case "mean":
            return fmean(numbers) if numbers else None
        case "largest":
            return max(numbers, default=None)
        case "smallest":
            return min(numbers, default=None)
        case "last_over_first":
            return found[-1] / found[0] if found[0] and found[-1] is not None else None


def _gradients(run: Ended) -> list[float]:
    """Of every update; one that did not take place is not there."""
    return [m["grad_norm"] for m in run.metrics if "lr" in m]


def _after_a_tenth(values: Sequence[float]) -> Sequence[float]:
    return values[len(values) // 10 :]


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
