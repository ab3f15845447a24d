"""What was computed from files before: while none of the files changes, it is not computed again.

Each result is a small file in the cache folder. Where it is missing, damaged or cannot be written, the result is
computed from the files.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from archlab.errors import UserError
from archlab.files import cache_folder, write_atomic

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
