"""What a summary keeps of an arm's runs beside its outcomes: curves, probes and single documents."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads its parts on first use

from archlab.study.formatting import four_digits
from archlab.study.record import Curve, DocumentDifference, DocumentView, ProbedArm
from archlab.study.runs import Ended
from archlab.study.stats import ALPHA
from archlab.training.measures import OF_LAYERS as MEASURES
from archlab.training.probes import Number
from archlab.training.run_folder import PROBES

_PARTS = 100
"""Of the curves of a run's updates, at most."""


def curve_of(seed: int, run: Ended) -> Curve:
    """Its evaluations as they are, its updates in parts."""
    measure = "bits_per_byte" if any("bits_per_byte" in m for m in run.metrics) else "accuracy"
    points = [(m["tokens"], m[measure]) for m in run.metrics if measure in m]
    parts = list(_parts(run))
    return Curve(
        seed=seed,
        tokens=[tokens for tokens, _ in points],
        values=[value for _, value in points],
        trained=[part[-1]["tokens"] for part in parts],
        losses=[four_digits(fmean(m["loss"] for m in part)) for part in parts],
        gradients=[four_digits(max(m["grad_norm"] for m in part)) for part in parts],
    )


def _parts(run: Ended) -> Iterator[list[dict[str, Any]]]:
    """The log of its updates in parts as equal as can be."""
    updates = [m for m in run.metrics if "lr" in m]
    n = min(_PARTS, len(updates))
    for i in range(n):
        yield updates[i * len(updates) // n : (i + 1) * len(updates) // n]


_FEWEST = 5
"""Documents of which an interval may be told."""

_SHOWN = 5
"""Documents at each end that a person is shown."""


class _Pair(NamedTuple):
    """A document of one of the folds."""

    begins: str
    bits: float
    """The arm's minus its reference's."""
    bytes: int


def compare_documents(arm: Mapping[int, Ended], reference: Mapping[int, Ended]) -> DocumentView | None:
    """By the documents that both have scored with the same seed; None with too few."""
    pairs = _pairs(arm, reference)
    if len(pairs) < _FEWEST:
        return None
    bits, n_bytes = np.array([pair.bits for pair in pairs]), np.array([pair.bytes for pair in pairs])
    # A ratio of two sums over documents (Cochran 1977, 6.8): what a document adds beyond the ratio is its residual.
    ratio = bits.sum() / n_bytes.sum()
    residuals = bits - ratio * n_bytes
    n = len(pairs)
    error = sqrt(n / (n - 1) * float((residuals**2).sum())) / float(n_bytes.sum())
    reach = float(scipy.stats.t.isf(ALPHA / 2, n - 1)) * error
    ordered = sorted(pairs, key=lambda pair: pair.bits / pair.bytes)
    shown = min(_SHOWN, n // 2)
    return DocumentView(
        documents=n,
        difference=float(ratio),
        low=float(ratio) - reach,
        high=float(ratio) + reach,
        lowest=_shown(ordered[:shown]),
        highest=_shown(ordered[: -shown - 1 : -1]),
    )


def _pairs(arm: Mapping[int, Ended], reference: Mapping[int, Ended]) -> list[_Pair]:
    """Each document once, with the mean over the seeds that were judged on it. Only where both were scored on the same
    documents; with other tokenizers they are cut elsewhere."""
    by_fold = dict[tuple[tuple[str, int], ...], list[list[float]]]()
    for seed in sorted(arm.keys() & reference.keys()):
        ours, theirs = arm[seed].documents, reference[seed].documents
        fold = tuple((d.begins, d.bytes) for d in theirs)
        if [d.bytes for d in ours] == [d.bytes for d in theirs]:
            by_fold.setdefault(fold, []).append([o.bits - t.bits for o, t in zip(ours, theirs, strict=True)])
    return [
        _Pair(begins, fmean(differences), n_bytes)
        for fold, seeds in by_fold.items()
        for (begins, n_bytes), differences in zip(fold, zip(*seeds, strict=True), strict=True)
        if n_bytes
    ]


def _shown(pairs: Sequence[_Pair]) -> list[DocumentDifference]:
    return [DocumentDifference(begins=p.begins, difference=p.bits / p.bytes, bytes=p.bytes) for p in pairs]


OF_LAYERS = tuple(name for name, measure in MEASURES.items() if measure.in_studies)
OF_MODEL = ("log_z",)

LARGEST = tuple(name for name, measure in MEASURES.items() if measure.takes_largest)
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
