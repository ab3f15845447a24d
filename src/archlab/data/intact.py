"""Whether files are what was written: every byte is read once, later only a few spots until a file changes."""

import hashlib
import random
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archlab.config.core.text import note
from archlab.data.file_cache import cached
from archlab.files import MEBIBYTE
from archlab.pricing.units import binary

LARGE = 128 * MEBIBYTE
"""Bytes from which on reading them all is worth a word: about half a second."""

BLOCK = MEBIBYTE
"""Bytes that a checksum is kept of."""

SPOTS = 32
"""Blocks that are read each time, of all files together: so of small ones every byte."""


def altered(expected: Mapping[Path, str]) -> Path | None:
    """A file whose content has not the sha256 that is expected of it, if one is found.

    The content of a file that has changed since it was last read (see `cached`) is read whole. Of all others some
    blocks, chosen at random, are compared with their checksums, for a disk may lose bits without a change of the file.
    """
    spots = list[tuple[Path, int, int]]()
    for file, digest in expected.items():
        found = cached(["blocks", BLOCK, str(file.absolute())], [file], lambda file=file: digests(file))
        if found["sha256"] != digest:
            return file
        spots += [(file, number * BLOCK, checksum) for number, checksum in enumerate(found["blocks"])]
    chosen = random.Random().sample(spots, min(SPOTS, len(spots)))
    return next((file for file, at, checksum in chosen if zlib.crc32(_block(file, at)) != checksum), None)


def digests(file: Path) -> dict[str, Any]:
    """The sha256 of its content as hex, and the CRC-32 of each of its blocks."""
    if (size := file.stat().st_size) >= LARGE:
        note(f"{file}: {binary(size)} are compared with their hash, and again only when the file changes")
    whole, blocks = hashlib.sha256(), list[int]()
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            whole.update(block)
            blocks.append(zlib.crc32(block))
    return {"sha256": whole.hexdigest(), "blocks": blocks}


def _block(file: Path, at: int) -> bytes:
    with file.open("rb") as content:
        content.seek(at)
        return content.read(BLOCK)
