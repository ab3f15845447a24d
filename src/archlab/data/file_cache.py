"""Cache of values computed from files, kept until a file changes. For example, checksums that detect damage are cached.

Each value is a small file in the cache folder. If the small file is missing, damaged or not writable, the value is
computed again.
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
"""Nanoseconds that must pass after a file's last change before a value computed from the file is cached.

A file that changed more recently could change again without a new timestamp, because some file systems have coarse
clocks. The coarsest, FAT, has steps of 2 seconds.
"""


def cached(key: object, files: Sequence[Path], compute: Callable[[], Any]) -> Any:
    """Return `compute()`, from the cache if possible.

    The result must be a JSON value that depends only on `key` (also JSON) and on the content of `files`. A file counts
    as unchanged if its path, size, inode, mtime and ctime (in nanoseconds) are unchanged. Damage that changes none of
    these, such as bit rot on a disk, is not noticed.
    """
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    entry = cache_folder() / "seen" / f"{name}.json"
    before, latest = _state(files)
    cached_entry = _read(entry)
    if cached_entry and cached_entry["state"] == before:
        return cached_entry["found"]
    settled = time.time_ns() - latest > SETTLED
    result = compute()
    if settled and _state(files) == (before, latest):
        with suppress(OSError, UserError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(entry, _with_checksum({"state": before, "found": result}))
    return result


def clear_cache() -> None:
    for entry in (cache_folder() / "seen").glob("*.json"):
        entry.unlink(missing_ok=True)


def _state(files: Sequence[Path]) -> tuple[str, int]:
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
    try:
        text = entry.read_text(encoding="utf-8")
        content = json.loads(text.partition("\n")[2])
    except (OSError, ValueError, RecursionError):
        return None
    return content if text == _with_checksum(content) else None


# --- checksums of files -----------------------------------------------------------------------------------------------

LARGE = 128 * MEBIBYTE
"""File size in bytes from which a message says that the file is being checked.

Reading a file of this size takes about half a second.
"""

BLOCK = MEBIBYTE
"""Block size in bytes. Each block of a file has its own checksum."""

SPOTS = 32
"""Number of blocks that each check compares, over all files together. All blocks of small files are compared."""


def first_altered_file(expected: Mapping[Path, str]) -> Path | None:
    """Return a file whose content does not have the expected sha256, or None if no altered file is found.

    A file that has changed since it was last read (see `cached`) is read completely. In all other files, some random
    blocks are compared with their checksums, because a disk may lose bits without any sign of a change.
    """
    spots = list[tuple[Path, int, int]]()
    for file, digest in expected.items():
        checksums = cached(["blocks", BLOCK, str(file.absolute())], [file], lambda file=file: digests(file))
        if checksums["sha256"] != digest:
            return file
        spots += [(file, number * BLOCK, checksum) for number, checksum in enumerate(checksums["blocks"])]
    chosen = random.Random().sample(spots, min(SPOTS, len(spots)))
    return next((file for file, at, checksum in chosen if zlib.crc32(_block(file, at)) != checksum), None)


def digests(file: Path) -> dict[str, Any]:
    """Return the sha256 of a file as hex, and the CRC-32 of each of its blocks."""
    if (size := file.stat().st_size) >= LARGE:
        note(f"{file}: checking the hash of {binary(size)}; this is repeated only when the file changes")
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
