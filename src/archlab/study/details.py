"""Details of an arm's runs beyond its outcomes: learning curves, probes, and differences per document."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any, NamedTuple, get_args

import numpy as np
import scipy  # loads its parts on first use

from archlab.data.batch import ScoreName
from archlab.spacing import evenly_spaced
from archlab.study.formatting import four_digits
from archlab.study.record import Curve, DocumentDifference, DocumentView, ProbedArm
from archlab.study.runs import Ended
from archlab.study.stats import ALPHA
from archlab.training.measures import OF_LAYERS, Number
from archlab.training.run_files import parts, probes_of

_PARTS = 100


def curve_of(seed: int, run: Ended) -> Curve:
    """Return the learning curve of a run: all its evaluations, and a summary of its updates in at most 100 parts."""
    measure = next((name for name in get_args(ScoreName) if any(name in m for m in run.metrics)), "accuracy")
    points = [(m["tokens"], m[measure]) for m in run.metrics if measure in m]
    logged = list(parts([m for m in run.metrics if "lr" in m], _PARTS))
    return Curve(
        seed=seed,
        tokens=[tokens for tokens, _ in points],
        values=[value for _, value in points],
        trained=[part[-1]["tokens"] for part in logged],
        losses=[four_digits(fmean(m["loss"] for m in part)) for part in logged],
        gradients=[four_digits(max(m["grad_norm"] for m in part)) for part in logged],
    )


_FEWEST = 5
"""Smallest number of documents for which an interval is computed."""

_SHOWN = 5
"""Largest number of documents that are listed with the lowest differences, and with the highest."""


class _Pair(NamedTuple):
    """A held-out document, scored by an arm and by its reference."""

    begins: str
    bits: float
    """Bits that the arm needs for the document, minus bits that the reference needs."""
    bytes: int


def compare_documents(arm: Mapping[int, Ended], reference: Mapping[int, Ended]) -> DocumentView | None:
    """Compare an arm with its reference on the documents that both scored with the same seed. Return None if there are
    fewer than `_FEWEST` documents."""
    pairs = _pairs(arm, reference)
    if len(pairs) < _FEWEST:
        return None
    bits, n_bytes = np.array([pair.bits for pair in pairs]), np.array([pair.bytes for pair in pairs])
    # A ratio of two sums over documents (Cochran 1977, 6.8). A document's residual is its deviation from the ratio.
    ratio = bits.sum() / n_bytes.sum()
    residuals = bits - ratio * n_bytes
    n = len(pairs)
    error = sqrt(n / (n - 1) * float((residuals**2).sum())) / float(n_bytes.sum())
    half_width = float(scipy.stats.t.isf(ALPHA / 2, n - 1)) * error
    ordered = sorted(pairs, key=lambda pair: pair.bits / pair.bytes)
    n_shown = min(_SHOWN, n // 2)
    return DocumentView(
        documents=n,
        difference=float(ratio),
        low=float(ratio) - half_width,
        high=float(ratio) + half_width,
        lowest=_shown(ordered[:n_shown]),
        highest=_shown(ordered[: -n_shown - 1 : -1]),
    )


def _pairs(arm: Mapping[int, Ended], reference: Mapping[int, Ended]) -> list[_Pair]:
    """Return one pair per document, averaged over the seeds that scored the document.

    A seed counts only if the arm and its reference scored the same documents. If their tokenizers differ, the scored
    parts of the documents may differ, too.
    """
    by_fold = dict[tuple[tuple[str, int], ...], list[list[float]]]()
    for seed in sorted(arm.keys() & reference.keys()):
        arm_scores, reference_scores = arm[seed].documents, reference[seed].documents
        fold = tuple((d.begins, d.bytes) for d in reference_scores)
        if [d.bytes for d in arm_scores] == [d.bytes for d in reference_scores]:
            by_fold.setdefault(fold, []).append(
                [o.bits - t.bits for o, t in zip(arm_scores, reference_scores, strict=True)]
            )
    return [
        _Pair(begins, fmean(differences), n_bytes)
        for fold, seeds in by_fold.items()
        for (begins, n_bytes), differences in zip(fold, zip(*seeds, strict=True), strict=True)
        if n_bytes
    ]


def _shown(pairs: Sequence[_Pair]) -> list[DocumentDifference]:
    return [DocumentDifference(begins=p.begins, difference=p.bits / p.bytes, bytes=p.bytes) for p in pairs]


_OF_LAYERS_IN_STUDIES = tuple(name for name, measure in OF_LAYERS.items() if measure.in_studies)
_OF_MODEL_IN_STUDIES = ("log_z",)

_MOST_PROBES = 50


def probed_arm(ended: Mapping[int, Ended]) -> ProbedArm | None:
    """Return the probe values of an arm, averaged over its runs. Return None if the runs have no probe at the same
    number of tokens. `ended` maps each seed to the results of its run."""
    finished = {seed: run for seed, run in ended.items() if run.summary.status != "diverged"} or ended
    by_seed = {seed: values for seed, run in finished.items() if (values := probes_of(run.metrics))}
    shared = sorted(set[int].intersection(*map(set, by_seed.values()))) if by_seed else []
    if not shared:
        return None
    tokens = evenly_spaced(shared, _MOST_PROBES)
    probes = [[values[n] for values in by_seed.values()] for n in tokens]
    recorded = {name for seed_probes in probes for probe in seed_probes for name in probe}
    layers = {
        name: [_means(name, seed_probes) for seed_probes in probes]
        for name in _OF_LAYERS_IN_STUDIES
        if name in recorded
    }
    model = {
        name: [_mean([probe.get(name) for probe in seed_probes]) for seed_probes in probes]
        for name in _OF_MODEL_IN_STUDIES
    }
    over_time = {name: [OF_LAYERS[name].over_layers(row) for row in values] for name, values in layers.items()} | model
    return ProbedArm(
        seeds=list(by_seed),
        tokens=tokens,
        at_end={name: _short(values[-1]) for name, values in layers.items()},
        over_time={name: _short(values) for name, values in over_time.items()},
    )


def _means(name: str, seed_probes: Sequence[Mapping[str, Any]]) -> list[Number]:
    """Return the mean of a measure over the seeds, for each layer. Return an empty list if a probe lacks the measure.
    For example, the first probe lacks measures of updates, because it precedes the first update."""
    return [_mean(values) for values in zip(*(probe.get(name, ()) for probe in seed_probes), strict=False)]


def _mean(values: Sequence[Number]) -> Number:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _short(values: Sequence[Number]) -> list[Number]:
    return [None if value is None else four_digits(value) for value in values]
