"""What was found in files before: while none of them changes, they are not read again.

A small file per subject in the cache folder. Where it is missing, damaged or not to be written, the files are read.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from archlab.errors import UserError
from archlab.files import write_atomic

SETTLED = 2 * 10**9
"""Nanoseconds. A file changed more recently could change again without another time of change (the coarsest clock, of
FAT, ticks so slowly); so it is not remembered yet."""


def cache_folder() -> Path:
    """$ARCHLAB_CACHE, or the user's cache folder."""
    return Path(os.environ.get("ARCHLAB_CACHE") or platformdirs.user_cache_dir("archlab"))


def remembered(subject: object, files: Sequence[Path], find: Callable[[], Any]) -> Any:
    """`find()`, a JSON value that depends on `subject` (JSON too) and the content of `files` alone.

    Unchanged is a file of the same path, size, inode and times (of its content and of its entry, to the nanosecond).
    Content that changed without any of these, as a disk that loses bits changes it, goes unseen.
    """
    place = hashlib.sha256(json.dumps(subject).encode()).hexdigest()[:32]
    memory = cache_folder() / "seen" / f"{place}.json"
    before, latest = _state(files)
    known = _recall(memory)
    if known and known["state"] == before:
        return known["found"]
    settled = time.time_ns() - latest > SETTLED
    found = find()
    if settled and _state(files) == (before, latest):
        with suppress(OSError, UserError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(memory, _sealed({"state": before, "found": found}))
    return found


def forget() -> None:
    """Have every file read again."""
    for memory in (cache_folder() / "seen").glob("*.json"):
        memory.unlink(missing_ok=True)


def _state(files: Sequence[Path]) -> tuple[str, int]:
    """A hash of what tells whether one of them changed, and when the latest change was, in nanoseconds."""
    digest, latest = hashlib.sha256(), 0
    for file in files:
        now = file.stat()
        facts = (now.st_size, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)
        digest.update(os.fsencode(file.absolute()) + f"\0{facts}\n".encode())
        latest = max(latest, now.st_mtime_ns, now.st_ctime_ns)
    return digest.hexdigest(), latest


def _sealed(content: object) -> str:
    text = json.dumps(content)
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n"


def _recall(memory: Path) -> dict[str, Any] | None:
    """None where there is nothing, or something else than was written."""
    try:
        text = memory.read_text(encoding="utf-8")
        content = json.loads(text.partition("\n")[2])
    except (OSError, ValueError, RecursionError):
        return None
    return content if text == _sealed(content) else None
