"""Outcomes that a run wrote while it trained."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from archlab.study.outcome_schema import (
    OF_EVERY_LAYER,
    Accuracy,
    BitsPerByte,
    Gap,
    LargestGradient,
    OnTheWay,
    Outcome,
    Probe,
    Spikes,
    TokensTo,
)
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
