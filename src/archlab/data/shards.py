"""A data folder: token shards, their tokenizer, and a manifest that lists them with their hashes.

    manifest.json  tokenizer.json  rest-00000.bin  rest-00001.bin  fold-00-00000.bin  fold-01-00000.bin ...

One fold is held out, whichever the config names; the others and the rest are trained on.

A shard is little-endian uint16 or uint32 token ids and nothing else. Every document is preceded by the same special
token, so every token of text is predicted exactly once. A few tokenizers put several tokens there (GLM: two).
"""

import hashlib
import json
import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError
from tokenizers import Tokenizer

from archlab.config.core.base import Base, Count, Natural
from archlab.data import tokenizer as bpe
from archlab.data.contents import Omissions
from archlab.data.file_cache import altered
from archlab.data.spelling import spelling
from archlab.data.tokenizer import TOKENIZER
from archlab.digests import REMAKE, sha256
from archlab.errors import UserError
from archlab.files import read_object
from archlab.pricing.units import decimal, si

FORMAT = 2
"""Version of the format. It is raised whenever older folders can no longer be read."""

MANIFEST = "manifest.json"

SHARD_NAME = re.compile(r"(rest|fold-\d\d)-\d{5}\.bin")

LITTLE_ENDIAN = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
"""The number formats of shards, as they are on disk whatever the machine."""

SHARD_TOKENS = 100_000_000
"""Tokens after which the next shard begins."""


class Shard(Base):
    """One file of tokens."""

    file: Annotated[str, Field(pattern=r"^[\w-]+\.bin$")]
    tokens: Count
    sha256: str


class FoldShards(Base):
    """What a fold holds, or the rest."""

    tokens: Natural
    """With the end-of-text tokens."""
    bytes: Natural
    """UTF-8 bytes of text."""
    documents: Natural
    shards: tuple[Shard, ...]


class Manifest(Base):
    """What a data folder holds."""

    format: int
    source: str
    """In words."""
    skipped: int
    """Files left out because they hold no UTF-8 text."""
    links: Natural = 0
    """Links left out because they lead out of their folder."""
    invalid: Natural = 0
    """Records and files left out because they cannot be read."""
    left_out: tuple[str, ...] = ()
    """The first of what was left out, each with the reason."""
    key: str
    """Hash of the text and the settings it was made from."""
    vocab_size: Count
    dtype: Literal["uint16", "uint32"]
    end_of_text: int
    """The token that precedes each document: the one with which the tokenizer's model begins a text (`bos_token`), or
    else its end-of-text token. Of several, the first."""
    tokenizer_sha256: str
    folds: Annotated[tuple[FoldShards, ...], Field(min_length=1)]
    """Each can be held out."""
    stretches: bool = False
    """Whether they are stretches of the text, for there were too few documents, or one too long, for folds of whole
    ones."""
    rest: FoldShards
    """In no fold: always trained on."""

    @property
    def omissions(self) -> Omissions:
        """All that was left out."""
        return Omissions(self.invalid, self.skipped, self.links, list(self.left_out))

    @property
    def parts(self) -> tuple[FoldShards, ...]:
        """All there is."""
        return (self.rest, *self.folds)


class ShardFile:
    """The tokens of one file, read slice by slice; UserError for a file of another length.

    The file is not mapped into memory: when a mapped file is truncated, the system ends the process that reads it.
    """

    def __init__(self, file: Path, n_tokens: int, dtype: str):
        self._file, self._length, self._dtype = file, n_tokens, LITTLE_ENDIAN[dtype]
        self._check_size(n_tokens * self._dtype.itemsize)
        self._descriptor = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def _check_size(self, expected: int) -> None:
        if not self._file.is_file():
            raise UserError(f"{self._file}: missing; {REMAKE}")
        found = self._file.stat().st_size
        if found != expected:
            state = "truncated" if found < expected else "too long"
            raise UserError(f"{self._file}: {state}: expected {expected} bytes, found {found}; {REMAKE}")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, wanted: slice) -> np.ndarray:
        start, stop, _ = wanted.indices(self._length)
        at, end = (index * self._dtype.itemsize for index in (start, stop))
        parts: list[bytes] = []
        try:
            while at < end and (part := os.pread(self._descriptor, end - at, at)):  # 2 GB at most come at once
                parts.append(part)
                at += len(part)
        except OSError as error:
            raise UserError(f"{self._file}: {error.strerror}") from None
        if at < end:
            raise UserError(f"{self._file}: was cut while it was in use; {REMAKE}")
        return np.frombuffer(b"".join(parts), self._dtype)


class Tokens:
    """The tokens of one split as one sequence, however many shards hold them."""

    def __init__(self, shards: Sequence[ShardFile | np.ndarray]):
        self._shards = shards
        self._starts = np.cumsum([0, *map(len, shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop (exclusive), int64."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        parts = [self._shards[i][max(start - self._starts[i], 0) : stop - self._starts[i]] for i in range(first, last)]
        return np.concatenate(parts).astype(np.int64)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """int64 [len(starts), length]."""
        return np.stack([self.read(int(s), int(s) + length) for s in starts])


class ShardWriter:
    """Appends pieces of documents to the shards of one part; a new shard begins whenever one is full."""

    def __init__(self, folder: Path, part: str, dtype: str):
        self._folder, self._part, self._dtype = folder, part, LITTLE_ENDIAN[dtype]
        self._paths: list[Path] = []
        self._room = 0
        self._bytes = self._documents = 0

    def append(self, tokens: np.ndarray, text_bytes: int, documents: int) -> None:
        """Write tokens that stand for so many bytes of text and begin so many documents."""
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
        """What was written."""
        size = self._dtype.itemsize
        shards = tuple(Shard(file=p.name, tokens=p.stat().st_size // size, sha256=sha256(p)) for p in self._paths)
        tokens = sum(shard.tokens for shard in shards)
        return FoldShards(tokens=tokens, bytes=self._bytes, documents=self._documents, shards=shards)


@dataclass(frozen=True)
class DataFolder:
    """An opened data folder of which one fold is held out; every byte of its files was compared with the manifest's
    hashes since they last changed."""

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer
    token_bytes: np.ndarray
    """int32 [vocab_size]: bytes of text that each id stands for, 0 for special tokens."""
    prefix_bytes: int
    """Bytes that the tokenizer puts before each document; its first token stands for that many bytes less."""
    fold: int
    train: Tokens
    held_out: Tokens

    @classmethod
    def open(cls, path: Path, fold: int = 0) -> "DataFolder":
        """Open and check a data folder; a UserError names the file and what is wrong with it."""
        manifest = _read_manifest(path)
        if fold >= (n := len(manifest.folds)):
            raise UserError(f"data.fold: {fold}; allowed: below {n}, the number of folds of {path}")
        rest, *folds = (
            [ShardFile(path / shard.file, shard.tokens, manifest.dtype) for shard in part.shards]
            for part in manifest.parts
        )
        held_out = Tokens(folds.pop(fold))
        train = Tokens([*rest, *chain.from_iterable(folds)])
        _check_content(path, manifest)
        tokenizer = bpe.load(path / TOKENIZER, manifest.end_of_text)
        if (found := bpe.vocab_size(tokenizer)) != manifest.vocab_size:
            expected = manifest.vocab_size
            raise UserError(f"{path / MANIFEST}: vocab_size: {expected}; the tokenizer has {found}; {REMAKE}")
        spelled = spelling(tokenizer)
        return cls(path, manifest, tokenizer, spelled.sizes, len(spelled.prefix), fold, train, held_out)

    @property
    def document_tokens(self) -> tuple[int, ...]:
        """Tokens that precede each document."""
        return bpe.document_tokens(self.tokenizer)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change when the tokens, their folds or their meaning change, and only then. Which fold is
        held out is not in them."""
        content = self.manifest.model_dump(include={"vocab_size", "end_of_text", "tokenizer_sha256"})
        content["parts"] = [
            [part.bytes, part.documents, *((s.tokens, s.sha256) for s in part.shards)] for part in self.manifest.parts
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        m = self.manifest
        text, tokens = (sum(getattr(part, what) for part in m.parts) for what in ("bytes", "tokens"))
        folds = f", in {len(m.folds)} folds" if len(m.folds) > 1 else ""
        if folds and m.stretches:
            folds += " of stretches, for documents are few or unequal"
        omitted = f"; left out: {m.omissions}" if str(m.omissions) else ""
        return (
            f"{m.source}: {decimal(text)} of text, {si(tokens)} tokens of a vocabulary of {m.vocab_size}"
            f"{folds}, {m.folds[self.fold].bytes / text:.1%} held out{omitted}"
        )


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.exists():
        raise UserError(f"{file}: No such file; a data folder is what `archlab data` makes")
    raw = read_object(file)
    if (found := raw.get("format")) != FORMAT:
        raise UserError(f"{file}: format version {found}; allowed: {FORMAT}; {REMAKE}")
    try:
        return Manifest.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {REMAKE}") from None


def _check_content(folder: Path, manifest: Manifest) -> None:
    """UserError unless every file has the hash that the manifest says."""
    expected = {folder / TOKENIZER: manifest.tokenizer_sha256}
    for shard in chain.from_iterable(part.shards for part in manifest.parts):
        expected[folder / shard.file] = shard.sha256
    if not (folder / TOKENIZER).is_file():
        raise UserError(f"{folder / TOKENIZER}: missing; {REMAKE}")
    if file := altered(expected):
        raise UserError(f"{file}: altered (its sha256 is not the manifest's); {REMAKE}")
