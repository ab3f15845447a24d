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
"""File name -> the sha256 that its content may have: of a file that is being replaced, the old or the new."""

ANEW = "put it back from a copy, or delete the folder and make it anew"

_Listed: TypeAlias = dict[str, list[str]]
_LISTED = TypeAdapter(_Listed)


def seal(folder: Path) -> None:
    """List every file of a folder that is just being made."""
    _write(folder, {file.name: [sha256(file)] for file in sorted(folder.iterdir()) if file.is_file()})


def write_listed(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write these files one after the other, each atomically. The list comes first: a kill leaves nothing unlisted."""
    encoded = {name: text.encode() if isinstance(text, str) else text for name, text in contents.items()}
    listed = _read(folder)
    for name, content in encoded.items():
        before = {sha256(folder / name)} if (folder / name).is_file() else set()
        if name in listed:  # what was damaged before must not pass when a kill leaves it
            before &= set(listed[name])
        listed[name] = sorted({hashlib.sha256(content).hexdigest(), *before})
    _write(folder, listed)
    for name, content in encoded.items():
        write_atomic(folder / name, content)


def listed(folder: Path) -> list[str]:
    """Names of the files whose damage would be noticed; UserError when the list itself is damaged."""
    return list(_read(folder))


def verify(file: Path, remedy: str = ANEW) -> None:
    """UserError if the file's content is not what archlab wrote. What is not listed, or not there, passes."""
    allowed = _read(file.parent).get(file.name)
    if allowed is not None and file.exists() and not (file.is_file() and _is_one_of(file, allowed)):
        hint = f"; {remedy}" if remedy else ""
        raise UserError(f"{file}: damaged: its content is not what was written ({DIGESTS} tells){hint}")


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


def _read(folder: Path) -> _Listed:
    file = folder / DIGESTS
    if not file.is_file():
        return {}
    try:
        return _LISTED.validate_json(read_bytes(file))
    except ValueError:
        raise UserError(f"{file}: damaged; put it back from a copy, or delete it to go on unchecked") from None


def _write(folder: Path, found: _Listed) -> None:
    write_atomic(folder / DIGESTS, json.dumps(found, indent=2) + "\n")
