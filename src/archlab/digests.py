"""Digests of the files that archlab has written into a folder. They show damage when the files are read."""

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter

from archlab.errors import UserError
from archlab.files import read_bytes, write_atomic

DIGESTS = "digests.json"
"""Name of the file that maps file names to allowed digests (sha256).

A file that is being replaced has two: the old and the new one.
"""

REMAKE = "delete the folder and make it again"
"""Advice in an error about a folder that cannot be used."""
RESTORE_OR_REMAKE = f"restore it from a copy, or {REMAKE}"
"""Advice in an error about a damaged file."""

_Digests: TypeAlias = dict[str, list[str]]
_DIGESTS = TypeAdapter(_Digests)


def write_digests(folder: Path) -> None:
    """Write the digests of every file in a folder that is being made."""
    _write(folder, {file.name: [sha256(file)] for file in sorted(folder.iterdir()) if file.is_file()})


def write_with_digests(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write these files one after the other, each atomically.

    The digests are written first, so that a killed process leaves no file without a digest.
    """
    encoded = {name: text.encode() if isinstance(text, str) else text for name, text in contents.items()}
    digests = _read(folder)
    for name, content in encoded.items():
        before = {sha256(folder / name)} if (folder / name).is_file() else set()
        if name in digests:  # after a kill, a file that was damaged before must not count as valid
            before &= set(digests[name])
        digests[name] = sorted({hashlib.sha256(content).hexdigest(), *before})
    _write(folder, digests)
    for name, content in encoded.items():
        write_atomic(folder / name, content)


def names_with_digest(folder: Path) -> list[str]:
    """Return the names of the files that have a digest. Raise UserError if the list itself is damaged."""
    return list(_read(folder))


def verify(file: Path, remedy: str = RESTORE_OR_REMAKE) -> None:
    """Raise UserError if archlab has not written this content. A missing file or one without a digest is accepted."""
    allowed = _read(file.parent).get(file.name)
    if allowed is not None and file.exists() and not (file.is_file() and _is_one_of(file, allowed)):
        hint = f"; {remedy}" if remedy else ""
        raise UserError(f"{file}: damaged: its content is not what was written (its sha256 is not in {DIGESTS}){hint}")


def _is_one_of(file: Path, allowed: list[str]) -> bool:
    try:
        return sha256(file) in allowed
    except OSError as error:
        if error.errno == errno.EIO:  # the disk cannot read it
            return False
        raise


def sha256(file: Path) -> str:
    """Return the sha256 of the content of a file, as hex."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(folder: Path) -> _Digests:
    file = folder / DIGESTS
    if not file.is_file():
        return {}
    try:
        return _DIGESTS.validate_json(read_bytes(file))
    except ValueError:
        raise UserError(f"{file}: damaged; restore it from a copy, or delete it to continue without checks") from None


def _write(folder: Path, digests: _Digests) -> None:
    write_atomic(folder / DIGESTS, json.dumps(digests, indent=2) + "\n")
