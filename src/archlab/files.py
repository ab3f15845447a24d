"""Writing so that nothing is ever half-written: to a temporary name, then rename."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from archlab.errors import UserError

TEMPORARY = ".archlab-tmp-"
"""How temporary names begin; a kill may leave one behind, and it may be deleted."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full or read-only disk, or a missing permission, as a UserError that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EROFS,
            errno.EACCES,
            errno.EPERM,
            errno.EFBIG,
            errno.ENOTDIR,
        ):
            raise UserError(f"{path}: cannot write: {error.strerror}") from error
        raise


def write_atomic(path: Path, content: str | bytes) -> None:
    """The file is either as before or wholly new, also after a power cut."""
    temporary = _beside(path)
    with disk_errors(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_atomic(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `path` at the end of the block, or removed if it fails."""
    temporary = _beside(path)
    with disk_errors(path):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            os.rename(temporary, path)
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{uuid4().hex[:12]}-{path.name}")


def remove_leftovers(folder: Path) -> None:
    """What a kill left half-written in a folder that nobody else is writing to."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
