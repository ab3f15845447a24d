"""Text to tokens by several workers, in order: the same tokens for any number of them.

tiktoken takes the place of the tokenizers library, several times as fast, if both give every text the same tokens.
"""

import json
import multiprocessing as mp
import os
import re
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from tiktoken import Encoding
from tokenizers import Tokenizer, models

from archlab.data import tokenizer as bpe
from archlab.data.spelling import bytes_of_name, spelling, without_prefix
from archlab.data.split import Piece
from archlab.errors import UserError
from archlab.interrupt import interrupts_blocked
from archlab.workers import starting_workers

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
        pool, encode, starting = ThreadPoolExecutor(workers), encoder.encode, interrupts_blocked
    else:
        pool = ProcessPoolExecutor(workers, mp.get_context("spawn"), _begin, (tokenizer.to_str(),))
        encode, starting = _encode, starting_workers
    waiting = deque[Future[list[Encoded]]]()
    try:
        for batch in batches:
            with starting():  # work for which no worker is idle starts one
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
    """Encodes without loss, or not at all: the bytes of the tokens are the bytes of the text.

    A tokenizer that puts a space before a text may put none before one that begins with a space, so that its tokens do
    not tell the two apart. Here every document has that space, as SentencePiece itself does it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelling = spelling(tokenizer)
        fast = by_rank(tokenizer)
        self.is_fast = fast is not None
        self._ids = fast.encode if fast else partial(bpe.encode, tokenizer)
        self._no_space = partial(bpe.encode, without_prefix(tokenizer)) if self._spelling.prefix else self._ids

    def encode(self, pieces: Sequence[Piece]) -> list[Encoded]:
        found = list[Encoded]()
        for no_space, group in groupby(pieces, key=self._goes_without_space):
            alike = list(group)
            texts = [(self._prefix(piece) if no_space else "") + piece.text for piece in alike]
            ids = (self._no_space if no_space else self._ids)(texts)
            found += [self._checked(piece, some) for piece, some in zip(alike, ids, strict=True)]
        return found

    def _goes_without_space(self, piece: Piece) -> bool:
        """Whether the tokenizer must put nothing before it: it has its space, or goes on in a document."""
        return not piece.begins_document or piece.text.startswith(self._spelling.prefix)

    def _prefix(self, piece: Piece) -> str:
        return self._spelling.prefix if piece.begins_document else ""

    def _checked(self, piece: Piece, ids: np.ndarray) -> Encoded:
        text, prefix = piece.text.encode(), self._prefix(piece)
        found = self._spelling.bytes_of(ids)
        if found != prefix.encode() + text or not self._spelling.sizes[ids].all():
            changed = _excerpts(piece.text, found.decode(errors="replace").removeprefix(prefix))
            raise UserError(
                f"{piece.name}: the tokenizer changes its text ({changed}), so bits per byte could not be exact; "
                "change the text like this beforehand, leave it out, or use another tokenizer"
            )
        ids = ids.astype(np.uint32, copy=False)
        return Encoded(piece.name, piece.fold, piece.begins_document, ids, len(text))


def _excerpts(before: str, after: str) -> str:
    """Return a piece of both texts, around the first difference."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(before), len(after)))
    begin = max(same - _BEFORE, 0)
    return " became ".join(ascii(text[begin : begin + _SHOWN]) for text in (before, after))


# --- in a process that encodes ----------------------------------------------------------------------------------------

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


# --- encoding by tiktoken ---------------------------------------------------------------------------------------------
#
# A tokenizer.json says which pairs merge, and in which order. tiktoken merges the two neighbours that make the token of
# the lowest id. Both give the same tokens if ids follow the order of the merges and every token, encoded alone, comes
# out whole: a border between two tokens that is there after some merges was there before each of them. The text between
# two such borders has therefore been merged as if it stood alone, so that two neighbours that together spell a token
# are the very two of which that token is merged.

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = bpe.WORDS.replace("{1,2}", "{1,3}")
SAME_WORDS = (bpe.WORDS, _LLAMA_3, _GPT2)
"""Patterns of words that both libraries read alike: tested for all characters up to U+1FFFF, and one in 97 beyond."""

_MANY = 200_000
_BLANKS = re.compile(rf"\s{{{_MANY}}}")
"""Blanks in a row that are left to the library: tiktoken's regular expressions give up at about a million."""


class ByRank:
    """Encodes with tiktoken."""

    def __init__(self, tokenizer: Tokenizer, pattern: str, ranks: dict[bytes, int]) -> None:
        self._tokenizer = tokenizer
        self._encoding = Encoding("archlab", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, uint32, without special tokens."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> np.ndarray:
        if len(text) >= _MANY and _BLANKS.search(text):
            return bpe.encode(self._tokenizer, [text])[0]
        return np.array(self._encoding.encode_ordinary(text), dtype=np.uint32)  # faster than its encode_to_numpy


def by_rank(tokenizer: Tokenizer) -> ByRank | None:
    """None where the tokens could be others than the library's."""
    parts = json.loads(tokenizer.to_str())
    pattern, names = _pattern(parts["pre_tokenizer"]), _plain_names(parts)
    if pattern is None or parts["normalizer"] is not None or names is None:
        return None
    return ByRank(tokenizer, pattern, {bytes_of_name(name): i for name, i in names.items()})


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """Of words, where there is one that both libraries read alike, and nothing else is done before merging."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if pattern in SAME_WORDS:
            return pattern
    return None


def _plain_names(parts: dict[str, Any]) -> dict[str, int] | None:
    """Token -> id, without special tokens, where an id tells when a token is merged."""
    model, added = parts["model"], parts["added_tokens"]
    if model["type"] != "BPE" or model.get("dropout") or not all(token["special"] for token in added):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    special = {token["content"] for token in added}
    names = {name: i for name, i in model["vocab"].items() if name not in special}
    merges = [tuple(pair) for pair in model["merges"]]
    made = [names.get(left + right, -1) for left, right in merges]
    if any(a > b for a, b in pairwise(made)):
        return None
    plain = models.BPE(vocab=model["vocab"], merges=merges)  # which takes no word whole, as `ignore_merges` would
    whole = (len(found := plain.tokenize(name)) == 1 and found[0].id == i for name, i in names.items())
    return names if all(whole) else None
