"""What probes found in the runs of an arm, as small as a picture needs it."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from archlab.study.formatting import four_digits
from archlab.study.record import ProbedArm
from archlab.study.runs import Ended
from archlab.training.probes import Number
from archlab.training.run_folder import PROBES

OF_LAYERS = (
    "gradient", "stream_rms", "update_ratio", "largest_score", "entropy", "first_token", "learned_sink", "dead_units",
    "largest_load",
)  # fmt: skip
OF_MODEL = ("log_z",)

LARGEST = ("largest_score", "largest_load")
"""Measures of which one layer decides: over time, the largest of all layers, not their mean."""

_MOST = 50
"""Probes that are kept."""


def probed_arm(ended: Mapping[int, Ended]) -> ProbedArm | None:
    """`ended`: the runs of an arm by seed. None where they share no probe."""
    finished = {seed: run for seed, run in ended.items() if run.summary.status != "diverged"} or ended
    by_seed = {seed: found for seed, run in finished.items() if (found := probes_of(run.metrics))}
    shared = sorted(set[int].intersection(*map(set, by_seed.values()))) if by_seed else []
    if not shared:
        return None
    tokens = _thinned(shared)
    probes = [[found[n] for found in by_seed.values()] for n in tokens]
    recorded = {name for of_seeds in probes for probe in of_seeds for name in probe}
    layers = {name: [_means(name, of_seeds) for of_seeds in probes] for name in OF_LAYERS if name in recorded}
    of_model = {name: [_mean([probe.get(name) for probe in of_seeds]) for of_seeds in probes] for name in OF_MODEL}
    over_time = {name: [over_layers(name, one) for one in found] for name, found in layers.items()} | of_model
    return ProbedArm(
        seeds=list(by_seed),
        tokens=tokens,
        at_end={name: _short(found[-1]) for name, found in layers.items()},
        over_time={name: _short(found) for name, found in over_time.items()},
    )


def probes_of(metrics: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """By training tokens."""
    tokens = {0: 0} | {line["step"]: line["tokens"] for line in metrics if "tokens" in line}
    return {tokens[line["step"]]: line[PROBES] for line in metrics if PROBES in line}


def _thinned(tokens: Sequence[int]) -> list[int]:
    """At most so many, evenly, the first and the last among them."""
    n = min(_MOST, len(tokens))
    return [tokens[i * (len(tokens) - 1) // max(1, n - 1)] for i in range(n)]


def _means(name: str, of_seeds: Sequence[Mapping[str, Any]]) -> list[Number]:
    """By layer; none of a probe that lacks the measure, as the first one lacks that of an update."""
    return [_mean(values) for values in zip(*(probe.get(name, ()) for probe in of_seeds), strict=False)]


def _mean(values: Sequence[Number]) -> Number:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def over_layers(name: str, layers: Sequence[Number]) -> Number:
    """One number of all layers: the largest of them or their mean, by the measure."""
    known = [value for value in layers if value is not None]
    return (max if name in LARGEST else fmean)(known) if known else None


def _short(values: Sequence[Number]) -> list[Number]:
    return [None if value is None else four_digits(value) for value in values]
