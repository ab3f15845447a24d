"""Outcomes that are computed from the log of a run, or from the runs of a sweep."""

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

from archlab.config.core.registry import implements, make
from archlab.study.outcomes.kinds import (
    OF_EVERY_LAYER,
    Accuracy,
    BestLoss,
    BestRate,
    BitsPerByte,
    DenoisingAccuracy,
    DenoisingLoss,
    Gap,
    LargestGradient,
    OnTheWay,
    Probe,
    Sensitivity,
    Spikes,
    TokensTo,
)
from archlab.study.outcomes.schema import Outcome
from archlab.study.outcomes.value import check_value
from archlab.study.record import SweepPoint
from archlab.study.runs import Ended
from archlab.training.summary import PROBES


def from_log(outcome: Outcome, run: Ended) -> float | None:
    """Return the outcome's value for a run. Return None if the run diverged or the outcome has no value for it."""
    return None if run.summary.status == "diverged" else make(outcome, run, check=check_value)


@implements(BitsPerByte)
def _bits_per_byte(outcome: BitsPerByte, run: Ended) -> float | None:
    return run.summary.bits_per_byte


@implements(Accuracy)
def _accuracy(outcome: Accuracy, run: Ended) -> float | None:
    return run.summary.accuracy


@implements(DenoisingLoss)
def _denoising_loss(outcome: DenoisingLoss, run: Ended) -> float | None:
    return run.summary.denoising_loss


@implements(DenoisingAccuracy)
def _denoising_accuracy(outcome: DenoisingAccuracy, run: Ended) -> float | None:
    return run.summary.denoising_accuracy


@implements(Gap)
def _gap(outcome: Gap, run: Ended) -> float:
    assert run.summary.loss is not None
    assert run.summary.train_loss is not None
    return run.summary.loss - run.summary.train_loss


@implements(LargestGradient)
def _largest_gradient(outcome: LargestGradient, run: Ended) -> float | None:
    gradients = [m["grad_norm"] for m in run.metrics if "lr" in m]
    return max(gradients[len(gradients) // 10 :], default=None)


@implements(Spikes)
def _spikes(outcome: Spikes, run: Ended) -> float:
    return float(run.summary.spikes)


@implements(TokensTo)
def _tokens_to(outcome: TokensTo, run: Ended) -> float | None:
    target = outcome.bits_per_byte
    points = [(m["tokens"], m["bits_per_byte"]) for m in run.metrics if "bits_per_byte" in m]
    for (before, worse), (after, loss) in pairwise(points):
        if loss <= target < worse:
            return before + (after - before) * (worse - target) / (worse - loss)
    return None


@implements(OnTheWay)
def _on_the_way(outcome: OnTheWay, run: Ended) -> float | None:
    points = [(m["tokens"], m["bits_per_byte"]) for m in run.metrics if "bits_per_byte" in m]
    until = outcome.share * run.summary.tokens * (1 + 1e-9)  # an evaluation exactly there counts
    return next((loss for tokens, loss in reversed(points) if 0 < tokens <= until), None)


@implements(Probe)
def _probed(outcome: Probe, run: Ended) -> float | None:
    """Return the value of a probe measure.

    Return None if no layer has a value, or if a value is missing although every layer should have one.
    """
    probes = [m[PROBES] for m in run.metrics if PROBES in m]
    values = probes[0 if outcome.at == "start" else -1].get(outcome.of) if probes else None
    if not isinstance(values, list):
        return values
    numbers = [number for number in values if number is not None]
    if outcome.of in OF_EVERY_LAYER and len(numbers) < len(values):
        return None
    match outcome.layers:
        case "mean":
            return fmean(numbers) if numbers else None
        case "largest":
            return max(numbers, default=None)
        case "smallest":
            return min(numbers, default=None)
        case "last_over_first":
            return values[-1] / values[0] if values[0] and values[-1] is not None else None


Swept = Mapping[str, Mapping[int, Mapping[float, Ended]]]
"""Results of the swept runs, by arm, seed and value of the swept field. A seed is included only if all its runs have
ended."""


def from_sweep(outcome: Outcome, runs: Mapping[float, Ended]) -> float | None:
    """Return the value of an outcome of a sweep, or None if all runs diverged. `runs` maps each value of the swept
    field to the results of its run."""
    has_value = any(math.isfinite(_loss(run)) for run in runs.values())
    return make(outcome, runs, check=check_value) if has_value else None


@implements(BestLoss)
def _best_loss(outcome: BestLoss, runs: Mapping[float, Ended]) -> float:
    return min(_loss(run) for run in runs.values())


@implements(BestRate)
def _best_rate(outcome: BestRate, runs: Mapping[float, Ended]) -> float:
    return min(runs, key=lambda value: _loss(runs[value]))


@implements(Sensitivity)
def _sensitivity(outcome: Sensitivity, runs: Mapping[float, Ended]) -> float:
    best = min(_loss(run) for run in runs.values())
    return sum(min(_loss(run), _start(run)) - best for run in runs.values()) / len(runs)


def sweep_points(field: str, swept: Swept) -> list[SweepPoint]:
    """Return the points of a sweep, arm by arm. For each arm, the values of the swept field are in ascending order."""
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
    score = run.summary.bits_per_byte
    return math.inf if score is None else score


def _start(run: Ended) -> float:
    return next((m["bits_per_byte"] for m in run.metrics if "bits_per_byte" in m), math.inf)
