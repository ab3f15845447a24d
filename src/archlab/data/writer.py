"""Writing the token shards of one side of the split."""

from pathlib import Path

import numpy as np

from archlab.data.shards import Shard, SideInfo, little_endian
from archlab.digests import sha256

SHARD_TOKENS = 100_000_000
"""Tokens after which the next shard begins."""


class SideWriter:
    """Appends pieces of documents; a new shard begins whenever one is full."""

    def __init__(self, folder: Path, side: str, dtype: str):
        self._folder, self._side, self._dtype = folder, side, little_endian(dtype)
        self._paths: list[Path] = []
        self._room = 0
        self._bytes = self._documents = 0

    def append(self, tokens: np.ndarray, text_bytes: int, documents: int) -> None:
        """Write tokens that stand for so many bytes of text and begin so many documents."""
        self._bytes += text_bytes
        self._documents += documents
        while len(tokens):
            if self._room == 0:
                self._paths.append(self._folder / f"{self._side}-{len(self._paths):05d}.bin")
                self._room = SHARD_TOKENS
            part, tokens = tokens[: self._room], tokens[self._room :]
            with self._paths[-1].open("ab") as file:
                file.write(part.astype(self._dtype).tobytes())
            self._room -= len(part)

    def finish(self) -> SideInfo:
        """What was written."""
        size = self._dtype.itemsize
        shards = tuple(Shard(file=p.name, tokens=p.stat().st_size // size, sha256=sha256(p)) for p in self._paths)
        tokens = sum(shard.tokens for shard in shards)
        return SideInfo(tokens=tokens, bytes=self._bytes, documents=self._documents, shards=shards)
