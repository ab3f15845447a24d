"""Encoding of text into tokens by several workers.

The order and the tokens are the same for any number of workers. If tiktoken gives the same tokens as the tokenizers
library for every text, tiktoken is used, because it is several times faster.
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
from tokenizers import Tokenizer, models, pre_tokenizers

from archlab.data import tokenizer as bpe
from archlab.data.spelling import Spelling, bytes_of_name, not_spelled, spelling, without_prefix
from archlab.data.split import Piece
from archlab.errors import UserError
from archlab.interrupt import interrupts_blocked
from archlab.workers import starting_workers

BATCH = 1_000_000
"""Number of characters in a batch. Encoding a batch takes at most a second, so Ctrl-C is noticed within a second."""

WORTH_A_PROCESS = 8_000_000
"""Number of characters that justify another process.

The tokenizers library takes about five seconds to encode them, and a process takes one second to start.
"""

_BEFORE, _SHOWN = 12, 24
"""Number of characters that a message shows of a text that the tokenizer changes.

`_BEFORE` of them are before the first changed character. `_SHOWN` is the total.
"""

_AHEAD = 2
"""Number of batches queued for each worker. The limit keeps memory independent of the length of the text."""


class Encoded(NamedTuple):
    """Tokens of a piece of text."""

    name: str
    fold: int | None
    begins_document: bool
    ids: np.ndarray
    text_bytes: int
    inexact: str | None = None
    """Reason why the tokens do not represent every byte of the text; None if they do."""


def encode_pieces(
    tokenizer: Tokenizer, pieces: Iterable[Piece], characters: int, workers: int
) -> Generator[Encoded, None, None]:
    """Encode all pieces, in order. Close the generator to end the workers.

    The workers are threads if tiktoken provably gives the same tokens as the tokenizers library. Otherwise they are
    processes: the tokenizers library creates a Python object for each token, which only one thread can do at a time.
    `characters` is the approximate length of the text. A short text is encoded without workers.
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
            with starting():  # the pool starts a new worker if none is idle
                waiting.append(pool.submit(encode, batch))
            if len(waiting) > _AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a process that encodes text has died, probably because memory ran out; use fewer --workers"
        ) from None
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
    """Encoder that compares the bytes of the tokens with the bytes of the text, and says if they differ.

    Some tokenizers add a space before a text, unless the text already begins with one. The texts `a` and ` a` then have
    the same tokens. To distinguish them, this encoder adds a space to every document, as SentencePiece itself does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._unknown = not_spelled(tokenizer)
        self._spelling = Spelling({0: b""}, "") if self._unknown else spelling(tokenizer)
        fast = by_rank(tokenizer)
        self.is_fast = fast is not None
        self._ids = fast.encode if fast else partial(bpe.encode, tokenizer)
        self._no_space = partial(bpe.encode, without_prefix(tokenizer)) if self._spelling.prefix else self._ids

    def encode(self, pieces: Sequence[Piece]) -> list[Encoded]:
        all_encoded = list[Encoded]()
        for no_space, group in groupby(pieces, key=self._goes_without_space):
            same_prefix = list(group)
            texts = [(self._prefix(piece) if no_space else "") + piece.text for piece in same_prefix]
            ids_of_texts = (self._no_space if no_space else self._ids)(texts)
            all_encoded += [self._compared(piece, ids) for piece, ids in zip(same_prefix, ids_of_texts, strict=True)]
        return all_encoded

    def _goes_without_space(self, piece: Piece) -> bool:
        return not piece.begins_document or piece.text.startswith(self._spelling.prefix)

    def _prefix(self, piece: Piece) -> str:
        return self._spelling.prefix if piece.begins_document else ""

    def _compared(self, piece: Piece, ids: np.ndarray) -> Encoded:
        text = piece.text.encode()
        inexact = self._unknown or self._difference(piece, text, ids)
        ids = ids.astype(np.uint32, copy=False)
        return Encoded(piece.name, piece.fold, piece.begins_document, ids, len(text), inexact)

    def _difference(self, piece: Piece, text: bytes, ids: np.ndarray) -> str | None:
        prefix, decoded = self._prefix(piece), self._spelling.bytes_of(ids)
        if decoded == prefix.encode() + text and self._spelling.sizes[ids].all():
            return None
        changed = excerpts(piece.text, decoded.decode(errors="replace").removeprefix(prefix))
        return f"{piece.name}: the tokenizer changes its text ({changed})"


def excerpts(before: str, after: str) -> str:
    """Return the part of a text around its first changed character, before and after the change."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(before), len(after)))
    begin = max(same - _BEFORE, 0)
    return " became ".join(ascii(text[begin : begin + _SHOWN]) for text in (before, after))


# --- worker processes -------------------------------------------------------------------------------------------------

_encoder: _Encoder


def _begin(tokenizer: str) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes already use all cores
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
# A tokenizer.json lists the pairs that merge, and their order. tiktoken instead merges the two neighbors whose joint
# token has the lowest id. Both give the same tokens under two conditions: ids follow the order of the merges, and
# each token, encoded alone, gives itself. The reason: merges only remove borders between tokens. A border that exists
# after some merges existed before each of them, so the text between two borders was merged as if it stood alone. Two
# neighbors that together spell a token are therefore the pair from which that token is merged.

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = bpe.WORDS.replace("{1,2}", "{1,3}")
SAME_WORDS = (bpe.WORDS, _LLAMA_3, _GPT2)
"""Patterns that split text into the same words in tiktoken and in the tokenizers library.

This was tested for all characters up to U+1FFFF, and for every 97th character above U+1FFFF.
"""

_MANY = 200_000
_BLANKS = re.compile(rf"\s{{{_MANY}}}")
"""Pattern of a long run of whitespace, which the tokenizers library encodes.

tiktoken's regular expressions fail at about a million characters.
"""


class ByRank:
    """Encoder that uses tiktoken."""

    def __init__(self, tokenizer: Tokenizer, pattern: str, ranks: dict[bytes, int]) -> None:
        self._tokenizer = tokenizer
        self._encoding = Encoding("archlab", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the token ids of each text as uint32, without special tokens."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> np.ndarray:
        if len(text) >= _MANY and _BLANKS.search(text):
            return bpe.encode(self._tokenizer, [text])[0]
        return np.array(self._encoding.encode_ordinary(text), dtype=np.uint32)  # faster than its encode_to_numpy


def by_rank(tokenizer: Tokenizer) -> ByRank | None:
    """Return a tiktoken encoder, or None if its tokens could differ from those of the tokenizers library."""
    parts = json.loads(tokenizer.to_str())
    pattern, names = _pattern(parts["pre_tokenizer"]), _plain_names(parts)
    if pattern is None or parts["normalizer"] is not None or names is None:
        return None
    return ByRank(tokenizer, pattern, {bytes_of_name(name): i for name, i in names.items()})


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
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
    model, added = parts["model"], parts["added_tokens"]
    if model["type"] != "BPE" or model.get("dropout") or not all(token["special"] for token in added):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    special = {token["content"] for token in added}
    names = {name: i for name, i in model["vocab"].items() if name not in special}
    merges = [tuple(pair) for pair in model["merges"]]
    merged_ids = [names.get(left + right, -1) for left, right in merges]
    if any(a > b for a, b in pairwise(merged_ids)):
        return None
    plain = models.BPE(vocab=model["vocab"], merges=merges)  # without `ignore_merges`, which takes a known word whole
    if not names.keys() >= set(pre_tokenizers.ByteLevel.alphabet()):
        return None  # tiktoken fails at a byte without a token; the tokenizers library drops it
    whole = (len(tokens := plain.tokenize(name)) == 1 and tokens[0].id == i for name, i in names.items())
    return names if all(whole) else None
