"""Division of a text into folds. One fold is held out; everything else is training data."""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np

from archlab.data.contents import Document
from archlab.data.corpus import Corpus
from archlab.data.template import TextTemplate
from archlab.errors import UserError

MOST_FOLDS = 20
"""Maximum number of folds of a text. If `held_out` is below 1/20, part of the text is therefore in no fold."""

PIECE = 1 << 20
"""Maximum number of characters of a piece. A longer document is cut, if possible at the end of a line.

The pieces of a document can be encoded in parallel.
"""

_QUARTER = 0.25
_BUCKETS = 1 << 16
"""Number of hash buckets for document names. A fixed number limits the memory for many documents."""


class Piece(NamedTuple):
    """A part of a document (usually the whole document) and the fold to which it belongs."""

    fold: int | None
    """Index of the fold. None means that the piece is in no fold and is always training data."""
    name: str
    text: str
    begins_document: bool


@dataclass(frozen=True)
class SplitRule:
    """Rule that divides a corpus into folds, with the hash of its text.

    If possible, folds contain whole documents. Documents are sorted by the hash of their names and then divided into
    folds of about the same size. A document that is longer than a fold is in no fold, because it would dominate the
    metric.

    If there is only one document, or a few of very different length, a fold of whole documents could have less than a
    quarter of the intended size. In that case, folds are contiguous stretches of the text instead. The first of these
    folds is at the end of the text.

    Pairs and conversations are never cut: they are always divided as whole documents. If a few long ones have most of
    the text, they are in no fold, and the folds divide the others. A long one that is left out later therefore takes
    nothing from the folds.
    """

    held_out: float
    """Fraction of the text in one fold."""
    by: Literal["documents", "position"]
    cuts: tuple[int, ...]
    """Borders of the folds in ascending order, one per fold.

    If `by` is `documents`, a border is the hash bucket at which a fold ends, from the first fold to the last. If `by`
    is `position`, a border is the index of the character at which a fold starts, from the last fold to the first.
    """
    longest: float
    """Maximum number of characters of a document that may be in a fold of whole documents."""
    characters: int
    bytes: int
    """Size of the whole text in bytes, as UTF-8."""
    digest: str
    """SHA-256 of the names and texts of all documents."""
    keeps_whole: bool = False
    """Whether documents are pairs or conversations, which are never cut into pieces."""

    @property
    def test_folds(self) -> int:
        """Number of test folds: the first half of the folds, but at least one.

        A tokenizer is learned from everything else, so no text of the test folds was used for the tokenizer.
        """
        return n_test_folds(len(self.cuts))

    def pieces(self, documents: Iterable[Document]) -> Iterator[Piece]:
        """Yield the pieces of all documents in order. Together they contain every character exactly once.

        A pair has two pieces: its source and its target.
        Raise UserError if the text is not the one for which the rule was made.
        """
        at, digest = 0, hashlib.sha256()
        for document in documents:
            _update(digest, document)
            for fold, part in self._parts(document, at):
                pieces = [part] if self.keeps_whole else _in_pieces(part)
                for number, piece in enumerate(pieces):
                    yield Piece(fold, document.name, piece, begins_document=number == 0)
            at += _length(document)
        if digest.hexdigest() != self.digest:
            raise UserError("the text changed while it was being read; run the command again")

    def _parts(self, document: Document, at: int) -> Iterator[tuple[int | None, str]]:
        if self.by == "documents":
            fold = bisect_right(self.cuts, _bucket(document.name))
            is_in_fold = fold < len(self.cuts) and _length(document) <= self.longest
            yield from ((fold if is_in_fold else None, text) for text in document.texts)
            return
        text = document.text
        slack = int(self.held_out * self.characters * _QUARTER)
        within = [_line_end(text, cut - at, slack) for cut in self.cuts if at < cut < at + len(text)]
        stretch = bisect_right(self.cuts, at)
        for number, (begin, end) in enumerate(pairwise([0, *within, len(text)]), stretch):
            if begin < end:
                yield len(self.cuts) - number if number else None, text[begin:end]


def choose_split(corpus: Corpus, held_out: float) -> SplitRule:
    """Read a corpus once and choose its split. Raise UserError if the corpus has no text, or too few pairs or
    conversations."""
    if not 0 < held_out < 1:
        raise UserError(f"data.held_out is {held_out}; allowed: above 0 and below 1, because every run is evaluated")
    unit, keeps_whole = corpus.template.unit, not isinstance(corpus.template, TextTemplate)
    digest, total, n_bytes = hashlib.sha256(), 0, 0
    short, longest = np.zeros(_BUCKETS), ("", 0)
    buckets, lengths = array("q"), array("q")
    for document in corpus:
        n_bytes += _update(digest, document)
        length, bucket = _length(document), _bucket(document.name)
        total += length
        longest = max(longest, (document.name, length), key=itemgetter(1))
        if keeps_whole or length > held_out * total:  # a whole one may be too long, and a text may be short in the end
            buckets.append(bucket)
            lengths.append(length)
        else:
            short[bucket] += length
    if total < 2:
        omitted = f"; left out: {corpus.omissions}" if str(corpus.omissions) else ""
        raise UserError("\n  ".join([f"{corpus} has no text{omitted}", *corpus.omissions.first]))
    n_folds = min(MOST_FOLDS, int(1 / held_out + 1e-9))
    buckets_N, lengths_N = np.array(buckets, dtype=np.int64), np.array(lengths, dtype=np.int64)
    limit = held_out * total
    while True:
        is_short_N = lengths_N <= limit
        sizes = short + np.bincount(buckets_N[is_short_N], lengths_N[is_short_N], _BUCKETS)
        next_limit = held_out * float(sizes.sum())
        if not keeps_whole or not (lengths_N[is_short_N] > next_limit).any():
            break
        limit = next_limit
    ends = _ends(sizes, held_out, n_folds)
    if _are_even(sizes, ends, held_out, float(sizes.sum()) if keeps_whole else total):
        return SplitRule(held_out, "documents", ends, limit, total, n_bytes, digest.hexdigest(), keeps_whole)
    if keeps_whole:
        name, length = longest
        most = f"the longest of {len(lengths)}, {name}, has {length / total:.1%} of the text ({length:,} characters)"
        hint = f"allowed: more {unit}, or another fraction (data.held_out, --held-out)"
        raise UserError(
            f"{corpus}: too few {unit} to hold out {held_out:.1%} of the text in whole {unit}; {most}; {hint}"
        )
    n_folds = max(min(n_folds, int((total - 1) / max(limit, 1))), 1)
    starts = tuple(max(round(total - fold * max(limit, 1)), 1) for fold in range(n_folds, 0, -1))
    return SplitRule(held_out, "position", starts, limit, total, n_bytes, digest.hexdigest())


def _are_even(sizes: np.ndarray, ends: Sequence[int], held_out: float, total: float) -> bool:
    """Return whether no fold of whole documents is much smaller than intended, or leaves much less training data."""
    fold_sizes = np.diff(np.concatenate(([0.0], sizes.cumsum()))[[0, *ends]])
    smallest, training = fold_sizes.min(), total - fold_sizes.max()
    return smallest >= max(_QUARTER * held_out * total, 1) and training >= _QUARTER * (1 - held_out) * total


def n_test_folds(n_folds: int) -> int:
    """Return the number of test folds, counted from the first fold. See `SplitRule.test_folds`."""
    return max(n_folds // 2, 1)


def hash_share(name: str) -> float:
    """Return a number in [0, 1) that depends only on the name."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:6]) / 2**48


def _bucket(name: str) -> int:
    return int(hash_share(name) * _BUCKETS)


def _ends(sizes: np.ndarray, share: float, n_folds: int) -> tuple[int, ...]:
    middles = sizes.cumsum() - sizes / 2
    targets = share * np.arange(1, n_folds + 1) * sizes.sum()
    return tuple(int(end) for end in np.searchsorted(middles, targets, side="left"))


def _length(document: Document) -> int:
    return sum(map(len, document.texts))


def _update(digest: "hashlib._Hash", document: Document) -> int:
    name, n_bytes = document.name, 0
    for text in document.texts:
        data = text.encode()
        digest.update(f"{len(name)} {name} {len(data)} ".encode(errors="surrogateescape"))
        digest.update(data)
        n_bytes += len(data)
    return n_bytes


def _line_end(text: str, near: int, slack: int) -> int:
    after = text.find("\n", near - 1, near + slack) + 1
    if 0 < after < len(text):
        return after
    return text.rfind("\n", max(near - slack, 0), near) + 1 or near


def _in_pieces(text: str) -> Iterator[str]:
    at = 0
    while len(text) - at > PIECE:
        cut = text.rfind("\n", at, at + PIECE) + 1 or at + PIECE
        yield text[at:cut]
        at = cut
    yield text[at:]
