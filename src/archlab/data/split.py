"""Which text is trained on and which is held out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from archlab.data.corpus import Corpus, Document
from archlab.errors import UserError

Split = Literal["train", "held_out"]

PIECE = 1 << 20
"""Characters after which a document is cut (at a line's end), so that its pieces are encoded side by side."""

_QUARTER = 0.25


class Piece(NamedTuple):
    """A part of a document (mostly all of it) and the split it belongs to."""

    split: Split
    name: str
    text: str
    begins_document: bool


@dataclass(frozen=True)
class SplitRule:
    """How a corpus is split, and the hash of the text that was split.

    Whole documents are held out, chosen by the hash of their names. A document that is longer than the whole held-out
    share is never held out, since it alone would decide the metric. Where that leaves either split with less than a
    quarter of its share (one file, or a few unequal ones), the tail of the text is held out instead.
    """

    held_out: float
    tail: int | None
    """Where the held-out tail begins, in characters of the whole text; None: whole documents are held out."""
    characters: int
    digest: str
    """sha256 of every document's name and text."""

    def pieces(self, documents: Iterable[Document]) -> Iterator[Piece]:
        """Every character of the documents, once, in order."""
        at, digest = 0, hashlib.sha256()
        for name, text in documents:
            _update(digest, name, text)
            for split, part in self._parts(name, text, at):
                for number, piece in enumerate(_cut(part)):
                    yield Piece(split, name, piece, begins_document=number == 0)
            at += len(text)
        if digest.hexdigest() != self.digest:
            raise UserError("the text changed while it was being read; run it again")

    def _parts(self, name: str, text: str, at: int) -> list[tuple[Split, str]]:
        if self.tail is None:
            chosen = hash_share(name) < self.held_out and len(text) <= self.held_out * self.characters
            return [("held_out" if chosen else "train", text)]
        if at + len(text) <= self.tail:
            return [("train", text)]
        if at >= self.tail:
            return [("held_out", text)]
        cut = _line_end(text, self.tail - at)
        return [("train", text[:cut]), ("held_out", text[cut:])]


def choose_split(corpus: Corpus, held_out: float) -> SplitRule:
    """Read a corpus once and decide how it is split."""
    if not 0 < held_out < 1:
        raise UserError(f"data.held_out: {held_out}; allowed: above 0 and below 1, since every run is evaluated")
    digest, total, candidates = hashlib.sha256(), 0, list[int]()
    for name, text in corpus:
        _update(digest, name, text)
        total += len(text)
        if hash_share(name) < held_out:
            candidates.append(len(text))
    if total < 2:
        binary = f"; {corpus.skipped} binary files were left out" if corpus.skipped else ""
        raise UserError(f"{corpus}: no text{binary}")
    chosen = sum(length for length in candidates if length <= held_out * total)
    enough = chosen >= _QUARTER * held_out * total and total - chosen >= _QUARTER * (1 - held_out) * total
    tail = None if enough else min(max(round(total * (1 - held_out)), 1), total - 1)
    return SplitRule(held_out, tail, total, digest.hexdigest())


def hash_share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:6]) / 2**48


def _update(digest: "hashlib._Hash", name: str, text: str) -> None:
    data = text.encode()
    digest.update(f"{len(name)} {name} {len(data)} ".encode(errors="surrogateescape"))
    digest.update(data)


def _line_end(text: str, near: int) -> int:
    """The first end of a line from `near` on, else the last one before it, else `near`; never an end of the text."""
    after = text.find("\n", near - 1) + 1
    if 0 < after < len(text):
        return after
    return text.rfind("\n", 0, near) + 1 or near


def _cut(text: str) -> Iterator[str]:
    at = 0
    while len(text) - at > PIECE:
        cut = text.rfind("\n", at, at + PIECE) + 1 or at + PIECE
        yield text[at:cut]
        at = cut
    yield text[at:]
