"""Text to tokens by several workers, in order: the same tokens for any number of them."""

import multiprocessing as mp
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import groupby
from multiprocessing import resource_tracker
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from archlab.data import tokenizer as bpe
from archlab.data.by_rank import by_rank
from archlab.data.spelling import spelling, without_prefix
from archlab.data.split import Piece
from archlab.errors import UserError
from archlab.interrupt import interrupts_blocked

BATCH = 1_000_000
"""Characters that are encoded at once, in a second at most; a Ctrl-C is noticed after them."""

WORTH_A_PROCESS = 8_000_000
"""Characters. The tokenizers library encodes them in about five seconds, and a process takes one to begin."""

_BEFORE, _SHOWN = 12, 24
"""Characters of a text that a message shows: before the first change, and in all."""

_AHEAD = 2
"""Batches that wait for each worker, so that memory does not grow with the text."""


class Encoded(NamedTuple):
    """A piece of text as tokens."""

    name: str
    fold: int | None
    begins_document: bool
    ids: np.ndarray
    text_bytes: int


def encoded(
    tokenizer: Tokenizer, pieces: Iterable[Piece], characters: int, workers: int
) -> Generator[Encoded, None, None]:
    """Every piece, in order; UserError where the tokenizer changes a text. Close it to end the workers.

    Where tiktoken provably gives the same tokens they are its threads, and else processes, for the tokenizers library
    hands each token to Python as an object. `characters`: about how many there are; few are encoded by this process.
    """
    batches, encoder = _batches(pieces), _Encoder(tokenizer)
    workers = workers if encoder.is_fast else min(workers, characters // WORTH_A_PROCESS)
    if workers <= 1:
        for batch in batches:
            yield from encoder.encode(batch)
        return
    if encoder.is_fast:
        pool, encode = ThreadPoolExecutor(workers), encoder.encode
    else:
        resource_tracker.ensure_running()  # else the first process would start it, which unblocks Ctrl-C
        pool = ProcessPoolExecutor(workers, mp.get_context("spawn"), _begin, (tokenizer.to_str(),))
        encode = _encode
    waiting = deque[Future[list[Encoded]]]()
    try:
        for batch in batches:
            with interrupts_blocked():  # work for which no worker is idle starts one
                waiting.append(pool.submit(encode, batch))
            if len(waiting) > _AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError("a process that tokenises has died; often that is too little memory: fewer --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Encoder:
    """Encodes without loss, or not at all: the bytes of the tokens are the bytes of the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelling = spelling(tokenizer)
        fast = by_rank(tokenizer)
        self.is_fast = fast is not None
        self._start = fast.encode if fast else partial(bpe.encode, tokenizer)
        self._rest = partial(bpe.encode, without_prefix(tokenizer)) if self._spelling.prefix else self._start

    def encode(self, pieces: Sequence[Piece]) -> list[Encoded]:
        found = list[Encoded]()
        for begins_document, group in groupby(pieces, key=lambda piece: piece.begins_document):
            alike = list(group)
            ids = (self._start if begins_document else self._rest)([piece.text for piece in alike])
            found += [self._checked(piece, some) for piece, some in zip(alike, ids, strict=True)]
        return found

    def _checked(self, piece: Piece, ids: np.ndarray) -> Encoded:
        text_bytes = piece.text.encode()
        prefix = self._spelling.prefix if piece.begins_document else b""
        spelled = [self._spelling.tokens[i] for i in ids.tolist()]
        found = b"".join(spelled)
        if found != prefix + text_bytes or not all(spelled):
            raise UserError(f"{piece.name}: {_changed(piece.text, found, prefix)}")
        ids = ids.astype(np.uint32, copy=False)
        return Encoded(piece.name, piece.fold, piece.begins_document, ids, len(text_bytes))


def _changed(text: str, found: bytes, prefix: bytes) -> str:
    """How the tokenizer has changed a text, and what to do."""
    if prefix and found == text.encode():
        return (
            "begins with a space, which the tokenizer does not keep apart from the space that it puts before a text, "
            "so bits per byte could not be exact; remove the space from the text"
        )
    after = found.removeprefix(prefix).decode(errors="replace")
    same = next((n for n, (a, b) in enumerate(zip(text, after, strict=False)) if a != b), min(len(text), len(after)))
    before, after = (ascii(some[max(same - _BEFORE, 0) :][:_SHOWN]) for some in (text, after))
    return (
        f"the tokenizer changes its text ({before} became {after}), so bits per byte could not be exact; "
        "change the text like this beforehand, leave it out, or use another tokenizer"
    )


# --- in a process that encodes ----------------------------------------------------------------------------

_encoder: _Encoder


def _begin(tokenizer: str) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a process already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = _Encoder(bpe.from_text(tokenizer))


def _end_with_parent() -> None:
    if parent := mp.parent_process():
        parent.join()
        os._exit(1)


def _encode(pieces: list[Piece]) -> list[Encoded]:
    return _encoder.encode(pieces)
