"""Digests of what archlab wrote into a folder, so that damage to it is noticed when it is read."""

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
"""File name -> the sha256 that its content may have. A file that is being replaced has two: the old and the new."""

REMAKE = "delete the folder and make it anew"
RESTORE_OR_REMAKE = f"put it back from a copy, or {REMAKE}"
"""What an error tells a user to do about a folder that cannot be used, and about a damaged file."""

_Digests: TypeAlias = dict[str, list[str]]
_DIGESTS = TypeAdapter(_Digests)


def write_digests(folder: Path) -> None:
    """List every file of a folder that is just being made."""
    _write(folder, {file.name: [sha256(file)] for file in sorted(folder.iterdir()) if file.is_file()})


def write_with_digests(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write these files one after the other, each atomically.

    Their digests are written first, so that a kill leaves no file without one.
    """
    encoded = {name: text.encode() if isinstance(text, str) else text for name, text in contents.items()}
    digests = _read(folder)
    for name, content in encoded.items():
        before = {sha256(folder / name)} if (folder / name).is_file() else set()
        if name in digests:  # a file that was damaged before must not pass when a kill leaves it
            before &= set(digests[name])
        digests[name] = sorted({hashlib.sha256(content).hexdigest(), *before})
    _write(folder, digests)
    for name, content in encoded.items():
        write_atomic(folder / name, content)


def names_with_digest(folder: Path) -> list[str]:
    """Names of the files whose damage would be noticed; UserError when the list itself is damaged."""
    return list(_read(folder))


def verify(file: Path, remedy: str = RESTORE_OR_REMAKE) -> None:
    """UserError if the file's content is not what archlab wrote. A file without a digest, or not there, passes."""
    allowed = _read(file.parent).get(file.name)
    if allowed is not None and file.exists() and not (file.is_file() and _is_one_of(file, allowed)):
        hint = f"; {remedy}" if remedy else ""
        raise UserError(f"{file}: damaged: its content is not what was written (its sha256 is not in {DIGESTS}){hint}")


def _is_one_of(file: Path, allowed: list[str]) -> bool:
    try:
        return sha256(file) in allowed
    except OSError as error:
        if error.errno == errno.EIO:  # the disk itself cannot read it
            return False
        raise


def sha256(file: Path) -> str:
    """Of a file's content, as hex."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(folder: Path) -> _Digests:
    file = folder / DIGESTS
    if not file.is_file():
        return {}
    try:
        return _DIGESTS.validate_json(read_bytes(file))
    except ValueError:
        raise UserError(f"{file}: damaged; put it back from a copy, or delete it to go on unchecked") from None


def _write(folder: Path, digests: _Digests) -> None:
    write_atomic(folder / DIGESTS, json.dumps(digests, indent=2) + "\n")
