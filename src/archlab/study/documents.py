"""Where two arms differ: held-out document by document, and an interval over the choice of documents.

The seeds' interval covers all that a seed decides. This one takes the trained models as they are and asks how far the
difference depends on which documents happened to be held out.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy import stats

from archlab.study.record import DocumentDifference, DocumentView
from archlab.study.runs import Ended
from archlab.study.stats import ALPHA

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
    reach = float(stats.t.isf(ALPHA / 2, n - 1)) * error
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
