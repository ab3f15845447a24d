"""Safe reading and writing of files.

Only regular files of a limited size are read. A file is written under a temporary name, synced to the disk and then
renamed. Therefore it is never incomplete, even after a power failure.
"""

import errno
import fcntl
import glob
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import platformdirs

from archlab.errors import UserError

TEMPORARY = ".archlab-tmp-"
"""Prefix of temporary file names. A killed process may leave temporary files behind; you may delete them."""

STUDY = "study.yaml"
"""Name of the file that marks a folder as a study folder."""
RUNS = "runs"
"""Name of the folder beside this file that holds the study's runs."""
REPORT = "report.html"
"""Name of the page in a study folder."""

MEBIBYTE = 2**20
TEXT_LIMIT = 16 * MEBIBYTE
"""Maximum size of a settings file or a small table, in bytes."""
LARGE_TEXT_LIMIT = 64 * MEBIBYTE
"""Maximum size of a large table, in bytes.

The index file of a model with 10^12 parameters takes about 20 MB, and a large tokenizer.json takes 35 MB.
"""


def read_bytes(path: Path | Traversable, limit: int = TEXT_LIMIT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raise a UserError that names the file if it is missing, too large or not readable, or if it is not a regular file.
    Pipes and devices are refused because reading them might never end.
    """
    if not isinstance(path, Path):  # the package is installed as an archive
        return path.read_bytes()
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: is {_kind_of_file(status.st_mode)}; allowed: a regular file")
            if status.st_size > limit:
                raise UserError(f"{path}: {status.st_size:,} bytes; allowed: up to {limit:,}")
            return file.read(status.st_size)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a zero byte in the name
        raise UserError(f"{str(path)!r}: not a valid file name: {error}") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file for reading. If it is a pipe without a writer, do not wait for one."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_text(path: Path | Traversable, limit: int = TEXT_LIMIT) -> str:
    """Return the content of a UTF-8 file. Raise UserError if `read_bytes` does, or if the content is not UTF-8."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file in UTF-8 (byte {error.start})") from None


def read_object(path: Path | Traversable, limit: int = TEXT_LIMIT) -> dict[str, Any]:
    """Return the JSON object in a file. Raise a UserError that names the file if it contains no object."""
    return parse_object(read_text(path, limit), str(path))


def parse_object(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raise a UserError whose message begins with `name` if the text contains no object.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise UserError(f"{name}: not valid JSON: too many nested brackets") from None
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name}: has the character U+{ord(error.object[error.start]):04X}, half of a surrogate pair"
        ) from None
    except ValueError as error:
        raise UserError(f"{name}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected a JSON object, found {type(value).__name__}")
    return value


def expand_user(path: str | Path) -> Path:
    """Return the path with a leading `~` or `~name` expanded. Raise UserError if that user does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"{path}: unknown user {Path(path).parts[0].removeprefix('~')!r}; write the full path of the folder"
        ) from None


def real_path(path: str | Path) -> Path:
    """Return the absolute path, with all symbolic links resolved.

    Links that form a loop are not resolved; reading such a path raises an error.
    """
    return Path(os.path.realpath(path))


def cache_folder() -> Path:
    """Return $ARCHLAB_CACHE, or archlab's folder in the user's cache folder."""
    return Path(os.environ.get("ARCHLAB_CACHE") or platformdirs.user_cache_dir("archlab"))


def state_folder() -> Path:
    """Return $ARCHLAB_STATE, or archlab's folder in the user's state folder.

    It is for files that archlab cannot create again if they are deleted. Other files are in the cache folder.
    """
    return Path(os.environ.get("ARCHLAB_STATE") or platformdirs.user_state_dir("archlab"))


_DEVICES = Path("/dev")


def _kind_of_file(mode: int) -> str:
    return "a pipe" if stat.S_ISFIFO(mode) else "a folder" if stat.S_ISDIR(mode) else "a device"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within the block, replace an OSError about a full disk, a read-only disk or missing permissions with a UserError
    that names the path. Replace any OSError about a temporary file, too, because the user does not know its name."""
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
            errno.ELOOP,
        ) or (TEMPORARY in str(error.filename) and error.errno not in (errno.ENOTEMPTY, errno.EEXIST)):
            raise UserError(f"{path}: cannot write: {error.strerror}") from error
        raise


def open_to_append(path: Path) -> TextIO:
    """Open a text file for appending. If it is a pipe without a reader, do not wait for one.

    Raise UserError if the path is a link.
    """
    with disk_errors(path):
        try:
            return open(path, "a", opener=_without_following)
        except OSError:
            if path.is_symlink():
                raise UserError(f"{path}: is a link; delete it") from None
            raise


def _without_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def refuse_linked_folders(folder: Path) -> None:
    """Raise UserError if the folder contains a link to a folder elsewhere, because archlab would write files into the
    linked folder."""
    for home, folders, _ in os.walk(folder):
        for path in (Path(home, name) for name in folders if os.path.islink(os.path.join(home, name))):
            hint = f"replace the link with a folder, or move all of {folder} there and replace {folder} with a link"
            raise UserError(f"{path}: is a link to {os.readlink(path)}, so files would be written there; {hint}")


def make_folder(path: Path) -> None:
    """Create the folder and its missing parents, and sync them to the disk."""
    with disk_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            _sync(folder.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: even after a power failure, it has either the old or the new content."""
    with file_atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_page(path: Path, content: str) -> Path:
    """Write a page as `write_atomic` does, creating missing parent folders, and return its path."""
    make_folder(path.parent)
    write_atomic(path, content)
    return path


@contextmanager
def file_atomic(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file for the block to write. Then rename the file to `path`; on an error, remove
    it.

    If `path` is a link, the file replaces the link and not its target: in a folder from somebody else, the target could
    be one of the user's files. Raise UserError if `path` is a folder, a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is {_kind_of_file(path.stat().st_mode)}; allowed: a regular file")
    if path.parent == _DEVICES:  # /dev/stdout is a link, and root may replace it
        raise UserError(f"{path}: is a device; allowed: a regular file")
    temporary = _temporary_name(path)
    with disk_errors(path):
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for the block to fill. Then rename the folder to `path`; on an error, remove it.

    Before that, remove temporary folders for this path that killed processes have left.
    """
    make_folder(path.parent)
    for other in path.parent.glob(f"{TEMPORARY}*-{glob.escape(path.name)}"):
        _remove_abandoned(other)
    with disk_errors(path):
        temporary, lock = _locked_temporary(path)
        try:
            yield temporary
            # Permissions follow the umask; safetensors writes for the owner only.
            mode = temporary.stat().st_mode & 0o666
            for inside in temporary.rglob("*"):
                if inside.is_file():
                    inside.chmod(mode)
                _sync(inside)
            _sync(temporary)
            os.rename(temporary, path)
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            os.close(lock)


def _locked_temporary(path: Path) -> tuple[Path, int]:
    """Create a temporary folder and lock it. Return it with the file descriptor of the lock. Other processes do not
    remove a locked folder, because the lock shows that this process is alive."""
    while True:
        temporary = _temporary_name(path)
        temporary.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(temporary, os.O_RDONLY)
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if temporary.exists():
                return temporary, lock
            os.close(lock)  # another process removed it before it was locked


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError), _opened(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{uuid4().hex[:12]}-{path.name}")


def remove_folder(path: Path) -> None:
    """Rename a folder to a temporary name, then remove it. Other processes therefore never see it with only some of its
    files."""
    temporary = _temporary_name(path)
    os.rename(path, temporary)
    shutil.rmtree(temporary)


def remove_leftovers(folder: Path) -> None:
    """Remove incomplete files of killed processes from a folder. No other process may be writing to the folder."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # another process may have renamed it, as `report --live` does


def _sync(path: Path) -> None:
    """Sync a file or folder to the disk. Skip unreadable folders, and file systems that cannot sync folders."""
    try:
        with _opened(path) as descriptor:
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file. A missing file is not locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
