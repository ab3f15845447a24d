"""Digests of the files that archlab writes into a folder. With them, archlab detects damaged files when it reads
them."""

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
"""Name of the file that maps each file name to its allowed SHA-256 digests.

While a file is being replaced, the digests of the old and the new content are both allowed.
"""

REMAKE = "delete the folder and create it again"
"""Advice in an error message about a folder that cannot be used."""
RESTORE_OR_REMAKE = f"restore the file from a backup, or {REMAKE}"
"""Advice in an error message about a damaged file."""

_Digests: TypeAlias = dict[str, list[str]]
_DIGESTS = TypeAdapter(_Digests)


def write_digests(folder: Path) -> None:
    """Write the digests of all files in a folder that is being created."""
    _write(folder, {file.name: [sha256(file)] for file in sorted(folder.iterdir()) if file.is_file()})


def write_with_digests(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write files into a folder, one after the other, and each atomically.

    The digests are written first. If the process is killed before all files are written, no file lacks a digest.
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
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomic(folder / name, content)


def names_with_digest(folder: Path) -> list[str]:
    """Return the names of the files that have a digest. Raise UserError if the file with the digests is damaged."""
    return list(_read(folder))


def verify(file: Path, remedy: str = RESTORE_OR_REMAKE) -> None:
    """Raise UserError if archlab did not write this content. Missing files and files without a digest are accepted."""
    verify_in(file.parent, file.name, remedy)


def verify_in(folder: Path, name: str, remedy: str = RESTORE_OR_REMAKE) -> None:
    """Do as `verify` for a file whose name may begin with that of a subfolder."""
    file, allowed = folder / name, _read(folder).get(name)
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
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(folder: Path) -> _Digests:
    file = folder / DIGESTS
    if not file.is_file():
        return {}
    try:
        return _DIGESTS.validate_json(read_bytes(file))
    except ValueError:
        raise UserError(
            f"{file}: damaged; restore the file from a backup, or delete it to continue without checks"
        ) from None


def _write(folder: Path, digests: _Digests) -> None:
    write_atomic(folder / DIGESTS, json.dumps(digests, indent=2) + "\n")
