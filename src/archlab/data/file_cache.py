"""Values computed from files, kept until a file changes; among them the checksums by which damage is noticed.

Each value is a small file in the cache folder. Where it is missing, damaged or cannot be written, the value is computed
from the files.
"""

import hashlib
import json
import os
import random
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from archlab.config.core.text import note
from archlab.errors import UserError
from archlab.files import MEBIBYTE, cache_folder, write_atomic
from archlab.pricing.units import binary

SETTLED = 2 * 10**9
"""Nanoseconds. A file that changed more recently could change again without another time of change, because the clock
of some file systems is coarse (the coarsest, of FAT, has steps of 2 seconds). So its result is not kept yet."""


def cached(key: object, files: Sequence[Path], compute: Callable[[], Any]) -> Any:
    """`compute()`, a JSON value that depends on `key` (JSON too) and the content of `files` alone.

    A file counts as unchanged if it has the same path, size, inode and times (of its content and of its entry, to the
    nanosecond). A change of content that changes none of these, as when a disk loses bits, is not noticed.
    """
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    entry = cache_folder() / "seen" / f"{name}.json"
    before, latest = _state(files)
    known = _read(entry)
    if known and known["state"] == before:
        return known["found"]
    settled = time.time_ns() - latest > SETTLED
    found = compute()
    if settled and _state(files) == (before, latest):
        with suppress(OSError, UserError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(entry, _with_checksum({"state": before, "found": found}))
    return found


def clear_cache() -> None:
    """Have every result computed again."""
    for entry in (cache_folder() / "seen").glob("*.json"):
        entry.unlink(missing_ok=True)


def _state(files: Sequence[Path]) -> tuple[str, int]:
    """A hash by which a change of any file is noticed, and when the latest change was, in nanoseconds."""
    digest, latest = hashlib.sha256(), 0
    for file in files:
        now = file.stat()
        facts = (now.st_size, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)
        digest.update(os.fsencode(file.absolute()) + f"\0{facts}\n".encode())
        latest = max(latest, now.st_mtime_ns, now.st_ctime_ns)
    return digest.hexdigest(), latest


def _with_checksum(content: object) -> str:
    text = json.dumps(content)
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n"


def _read(entry: Path) -> dict[str, Any] | None:
    """None where there is nothing, or something other than what was written."""
    try:
        text = entry.read_text(encoding="utf-8")
        content = json.loads(text.partition("\n")[2])
    except (OSError, ValueError, RecursionError):
        return None
    return content if text == _with_checksum(content) else None


# --- checksums of files -----------------------------------------------------------------------------------------------

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
