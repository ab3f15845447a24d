"""Where two arms differ: held-out document by document, and an interval over the choice of documents.

The seeds' interval covers all that a seed decides. This one takes the trained models as they are and asks how far the
difference depends on which documents happened to be held out.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy import stats

from archlab.study.record import DocumentDifference, DocumentView
from archlab.study.runs import Ended
from archlab.study.stats import ALPHA

_SHOWN = 5
"""Documents at each end that a person is shown."""


class _Pair(NamedTuple):
    """A document, in one seed's fold."""

    begins: str
    bits: float
    """The arm's minus its reference's."""
    bytes: int


def compare_documents(arm: Mapping[int, Ended], reference: Mapping[int, Ended]) -> DocumentView | None:
    """By the documents that both have scored with the same seed; None with fewer than two."""
    pairs = [pair for seed in sorted(arm.keys() & reference.keys()) for pair in _pairs(arm[seed], reference[seed])]
    if len(pairs) < 2:
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


def _pairs(arm: Ended, reference: Ended) -> Iterator[_Pair]:
    """Where both were scored on the same documents; with other tokenizers they are cut elsewhere."""
    if [d.bytes for d in arm.documents] != [d.bytes for d in reference.documents]:
        return
    for ours, theirs in zip(arm.documents, reference.documents, strict=True):
        if ours.bytes:
            yield _Pair(ours.begins, ours.bits - theirs.bits, ours.bytes)


def _shown(pairs: Sequence[_Pair]) -> list[DocumentDifference]:
    return [DocumentDifference(begins=p.begins, difference=p.bits / p.bytes, bytes=p.bytes) for p in pairs]
