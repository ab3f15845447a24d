"""Data folders: token shards, their tokenizer, and a manifest with their hashes.

    manifest.json  tokenizer.json  rest-00000.bin  rest-00001.bin  fold-00-00000.bin  fold-01-00000.bin ...

The config chooses one fold, which is held out. All other folds and the rest are training data.

A shard contains only token ids, as little-endian uint16 or uint32. The same special token precedes every document. The
model predicts the first token of the document from it. A few tokenizers put several special tokens before a document:
GLM, for example, puts two.

Conversations have only the tokens that their chat template writes. The two highest bits of a uint32 are flags: whether
the token counts in the loss (COUNTS), and whether it is the first of its conversation (BEGINS).
"""

import hashlib
import json
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError
from tokenizers import Tokenizer

from archlab.config.core.base import Base, Count, Natural
from archlab.config.objective import DataForm
from archlab.data import tokenizer as bpe
from archlab.data.contents import Omissions
from archlab.data.file_cache import first_altered_file
from archlab.data.spelling import not_spelled, spelling
from archlab.digests import REMAKE, sha256
from archlab.errors import UserError
from archlab.files import read_object
from archlab.hf.folder import TOKENIZER
from archlab.pricing.units import decimal, si

FORMAT = 2
"""Version of the data folder format. It increases when archlab can no longer read older folders."""

MANIFEST = "manifest.json"

SHARD_NAME = re.compile(r"(rest|fold-\d\d)-\d{5}\.bin")

LITTLE_ENDIAN = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
"""Dtypes of shards on disk. They do not depend on the machine."""

SHARD_TOKENS = 100_000_000

_BLOCK = 1 << 24
"""Number of tokens that are read at a time to search all tokens."""

COUNTS, BEGINS = np.uint32(1 << 31), np.uint32(1 << 30)
"""Flags of a token in a shard of conversations."""

TOKEN_ID = int(BEGINS) - 1
"""Bits of a token's id in a shard of conversations."""


class Shard(Base):
    """One file of tokens."""

    file: Annotated[str, Field(pattern=r"^[\w-]+\.bin$")]
    tokens: Count
    sha256: str


class FoldShards(Base):
    """Shards of one fold, or of the tokens outside all folds, and their totals."""

    tokens: Natural
    """Number of tokens, including those that precede documents."""
    bytes: Natural
    """Number of UTF-8 bytes of text."""
    documents: Natural
    shards: tuple[Shard, ...]


class LongestText(Base):
    """Longest source or longest target in a folder of pairs."""

    where: str
    """Name of its pair: the file, and the number of the record."""
    tokens: Natural
    """Number of tokens, without special tokens."""


class PairFacts(Base):
    """Facts about a folder of pairs. In its shards, each source is a document, and its target is the next document."""

    fields: tuple[str, str]
    """Names of the fields from which sources and targets were read."""
    longest_source: LongestText
    longest_target: LongestText


class ChatFacts(Base):
    """Facts about a folder of conversations."""

    fields: tuple[str, ...]
    """Name of the field of the messages, or of those of the prompt and the response."""
    counted: Natural
    """Number of tokens that count in the loss."""
    longest: LongestText
    """Longest conversation."""
    ends: tuple[int, ...]
    """Special tokens that end responses."""
    files: dict[str, str]
    """SHA-256 of the files with the chat template and its special tokens, by name."""


class Manifest(Base):
    """Content of a data folder's manifest.json."""

    format: int
    source: str
    """Description of the sources."""
    skipped: int
    """Number of files left out because they are not UTF-8 text."""
    links: Natural = 0
    """Number of links left out because they lead out of their folder."""
    invalid: Natural = 0
    """Number of records and files left out because they cannot be read."""
    left_out: tuple[str, ...] = ()
    """First few omissions, each with the reason."""
    key: str
    """Hash of the text and the settings from which the folder was made."""
    vocab_size: Count
    dtype: Literal["uint16", "uint32"]
    end_of_text: int
    """First token that precedes each document.

    This is the BOS token with which the tokenizer's model begins a text (`bos_token`), or otherwise the EOS token.
    """
    tokenizer_sha256: str
    folds: Annotated[tuple[FoldShards, ...], Field(min_length=1)]
    """The parts into which the documents are divided. Each fold can be held out for evaluation."""
    stretches: bool = False
    """Whether folds are contiguous stretches of the text instead of whole documents.

    They are stretches if there are too few documents, or if one document is too long.
    """
    rest: FoldShards
    """Shards outside all folds. They are always training data."""
    pairs: PairFacts | None = None
    """Facts about the pairs. None if the folder holds no pairs."""
    chat: ChatFacts | None = None
    """Facts about the conversations. None if the folder holds no conversations."""
    inexact: str | None = None
    """Reason why the tokens do not represent every byte of the text. Bits per byte can then not be computed. None if
    the tokens represent every byte."""

    @property
    def form(self) -> DataForm:
        """Form of the data."""
        return "pairs" if self.pairs else "conversations" if self.chat else "text"

    @property
    def omissions(self) -> Omissions:
        return Omissions(self.invalid, self.skipped, self.links, list(self.left_out))

    @property
    def parts(self) -> tuple[FoldShards, ...]:
        return (self.rest, *self.folds)


class ShardFile:
    """Tokens of one shard. A slice is read from the file when it is needed.

    Raise UserError if the file does not have the expected length. The file is not memory-mapped: if a mapped file is
    truncated, the operating system kills the process that reads the file.
    """

    def __init__(self, file: Path, n_tokens: int, dtype: str):
        self._file, self._length, self._dtype = file, n_tokens, LITTLE_ENDIAN[dtype]
        self._check_size(n_tokens * self._dtype.itemsize)
        self._descriptor = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def _check_size(self, expected: int) -> None:
        if not self._file.is_file():
            raise UserError(f"{self._file}: missing; {REMAKE}")
        size = self._file.stat().st_size
        if size != expected:
            state = "truncated" if size < expected else "too long"
            raise UserError(f"{self._file}: {state}: expected {expected} bytes, found {size}; {REMAKE}")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, indices: slice) -> np.ndarray:
        start, stop, _ = indices.indices(self._length)
        at, end = (index * self._dtype.itemsize for index in (start, stop))
        parts: list[bytes] = []
        try:
            while at < end and (part := os.pread(self._descriptor, end - at, at)):  # one call reads at most 2 GB
                parts.append(part)
                at += len(part)
        except OSError as error:
            raise UserError(f"{self._file}: {error.strerror}") from None
        if at < end:
            raise UserError(f"{self._file} was truncated while it was in use; {REMAKE}")
        return np.frombuffer(b"".join(parts), self._dtype)


class Tokens:
    """Tokens of one split as one sequence over all its shards."""

    def __init__(self, shards: Sequence[ShardFile | np.ndarray]):
        self._shards = shards
        self._starts = np.cumsum([0, *map(len, shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens from `start` to `stop` (exclusive) as int64."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        parts = [self._shards[i][max(start - self._starts[i], 0) : stop - self._starts[i]] for i in range(first, last)]
        return np.concatenate(parts).astype(np.int64)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all tokens in consecutive blocks, so that memory need not hold them at once: the index of the first
        token, and the tokens as int64."""
        for start in range(0, len(self), _BLOCK):
            yield start, self.read(start, min(start + _BLOCK, len(self)))

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return windows of `length` tokens as int64 [len(starts), length]."""
        return np.stack([self.read(int(s), int(s) + length) for s in starts])


class ShardWriter:
    """Writer for the shards of one fold, or of the tokens outside all folds. It starts a new shard when one is full."""

    def __init__(self, folder: Path, part: str, dtype: str):
        self._folder, self._part, self._dtype = folder, part, LITTLE_ENDIAN[dtype]
        self._paths: list[Path] = []
        self._room = 0
        self._bytes = self._documents = 0

    def append(self, tokens: np.ndarray, text_bytes: int, documents: int) -> None:
        """Write the tokens of a text. `documents` is the number of documents that begin in this text."""
        self._bytes += text_bytes
        self._documents += documents
        while len(tokens):
            if self._room == 0:
                self._paths.append(self._folder / f"{self._part}-{len(self._paths):05d}.bin")
                self._room = SHARD_TOKENS
            part, tokens = tokens[: self._room], tokens[self._room :]
            with self._paths[-1].open("ab") as file:
                file.write(part.astype(self._dtype).tobytes())
            self._room -= len(part)

    def finish(self) -> FoldShards:
        size = self._dtype.itemsize
        shards = tuple(Shard(file=p.name, tokens=p.stat().st_size // size, sha256=sha256(p)) for p in self._paths)
        tokens = sum(shard.tokens for shard in shards)
        return FoldShards(tokens=tokens, bytes=self._bytes, documents=self._documents, shards=shards)


@dataclass(frozen=True)
class DataFolder:
    """An opened data folder with one fold held out.

    On opening, each file that changed since the last check is compared with its hash in the manifest.
    """

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer
    token_bytes: np.ndarray
    """Number of bytes of text for each token id, int32 [vocab_size]; 0 for special tokens. All are 0 if the bytes of
    this tokenizer's tokens are unknown."""
    prefix_bytes: int
    """Number of bytes that the tokenizer adds before each document.

    This number is subtracted from the bytes of a document's first token.
    """
    fold: int
    train: Tokens
    held_out: Tokens

    @classmethod
    def open(cls, path: Path, fold: int = 0, excluded_folds: Sequence[int] = ()) -> "DataFolder":
        """Open and check a data folder, of which training reads all folds but `fold` and the excluded ones. Raise a
        UserError that names a damaged file and the damage."""
        manifest = _read_manifest(path)
        n = len(manifest.folds)
        for field, index in (("fold", fold), *(("excluded_folds", index) for index in excluded_folds)):
            if index >= n:
                raise UserError(f"data.{field}: {index}; allowed: below {n}, the number of folds of {path}")
        rest, *folds = (
            [ShardFile(path / shard.file, shard.tokens, manifest.dtype) for shard in part.shards]
            for part in manifest.parts
        )
        held_out = Tokens(folds[fold])
        read = [shards for index, shards in enumerate(folds) if index not in (fold, *excluded_folds)]
        train = Tokens([*rest, *chain.from_iterable(read)])
        _check_content(path, manifest)
        tokenizer = bpe.load(path / TOKENIZER, manifest.end_of_text)
        if (vocab_size := bpe.vocab_size(tokenizer)) != manifest.vocab_size:
            expected = manifest.vocab_size
            raise UserError(f"{path / MANIFEST}: vocab_size is {expected}; the tokenizer has {vocab_size}; {REMAKE}")
        sizes, prefix = np.zeros(vocab_size, dtype=np.int32), ""
        if not not_spelled(tokenizer):
            spelled = spelling(tokenizer)
            sizes, prefix = spelled.sizes, spelled.prefix
        return cls(path, manifest, tokenizer, sizes, len(prefix), fold, train, held_out)

    @property
    def document_tokens(self) -> tuple[int, ...]:
        return bpe.document_tokens(self.tokenizer)

    @property
    def fingerprint(self) -> str:
        """Hash of 16 hex digits that changes if, and only if, the tokens, their folds or their meaning change.

        The hash does not depend on which fold is held out.
        """
        content = self.manifest.model_dump(include={"vocab_size", "end_of_text", "tokenizer_sha256"})
        content["parts"] = [
            [part.bytes, part.documents, *((s.tokens, s.sha256) for s in part.shards)] for part in self.manifest.parts
        ]
        if self.manifest.pairs:
            content["pairs"] = True
        if self.manifest.chat:
            content["chat"] = True
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        m = self.manifest
        text, tokens = (sum(getattr(part, what) for part in m.parts) for what in ("bytes", "tokens"))
        folds = f", in {len(m.folds)} folds" if len(m.folds) > 1 else ""
        if folds and m.stretches:
            folds += " of contiguous text, because documents are few or unequal"
        count = sum(part.documents for part in m.parts) // 2
        pairs = f", {count:,} pairs of {m.pairs.fields[0]} and {m.pairs.fields[1]}" if m.pairs else ""
        if m.chat:
            documents, share = sum(part.documents for part in m.parts), m.chat.counted / tokens
            longest = f"the longest has {m.chat.longest.tokens:,} tokens"
            pairs = f", {documents:,} conversations, {share:.1%} of tokens are responses, {longest}"
        omitted = f"; left out: {m.omissions}" if str(m.omissions) else ""
        return (
            f"{m.source}: {decimal(text)} of text, {si(tokens)} tokens of a vocabulary of {m.vocab_size}"
            f"{pairs}{folds}, {m.folds[self.fold].bytes / text:.1%} held out{omitted}"
        )


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.exists():
        raise UserError(f"{file} does not exist; make a data folder with `archlab data`")
    raw = read_object(file)
    if (version := raw.get("format")) != FORMAT:
        raise UserError(f"{file}: format version is {version}; allowed: {FORMAT}; {REMAKE}")
    try:
        return Manifest.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {REMAKE}") from None


def _check_content(folder: Path, manifest: Manifest) -> None:
    expected = {folder / TOKENIZER: manifest.tokenizer_sha256}
    if manifest.chat:
        expected |= {folder / name: digest for name, digest in manifest.chat.files.items()}
    for shard in chain.from_iterable(part.shards for part in manifest.parts):
        expected[folder / shard.file] = shard.sha256
    if missing := next((file for file in expected if not file.is_file()), None):
        raise UserError(f"{missing}: missing; {REMAKE}")
    if file := first_altered_file(expected):
        raise UserError(f"{file}: altered (its sha256 differs from the manifest); {REMAKE}")
