"""Sources to documents: the running Python's own source, text files, folders, globs, JSONL and Parquet."""

import glob
import io
import json
import os
import platform
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.files import expand_user

STDLIB = "python-stdlib"
"""The source that every machine has: the standard library of the Python that runs."""

_NOT_STDLIB = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_MACHINE_MADE = ("config-", "_sysconfigdata")
_WILDCARD = re.compile(r"[*?\[]")


class Document(NamedTuple):
    """One text, and the name that decides on which side of the split it lies."""

    name: str
    text: str


class _File(NamedTuple):
    path: Path
    name: str
    asked_for: bool
    """Named by the user, not found in a folder: then being binary is an error."""


class NotTextError(Exception):
    """The file holds no UTF-8 text."""


class Corpus:
    """The documents of some sources, in a fixed order. Every iteration reads them from disk again."""

    def __init__(self, sources: Sequence[str]):
        if not all(sources) or not sources:
            raise UserError(f"no source; give {STDLIB}, or files, folders or globs of text, JSONL or Parquet")
        self.sources = list(sources)
        self.skipped = 0
        """Binary files left out by the latest iteration."""

    def __iter__(self) -> Iterator[Document]:
        self.skipped = 0
        seen: set[Path] = set()
        for source in self.sources:
            for file in _stdlib_files() if source == STDLIB else _files(source):
                # A file reached twice under two names could lie on both sides of the split.
                if (real := file.path.resolve()) in seen:
                    continue
                seen.add(real)
                try:
                    yield from (d for d in _read(file, declared=source == STDLIB) if d.text)
                except NotTextError:
                    if file.asked_for:
                        raise UserError(f"{file.path}: binary; expected UTF-8 text, .jsonl or .parquet") from None
                    self.skipped += 1
                except OSError as error:
                    raise UserError(f"{file.path}: {error.strerror}") from None

    def __str__(self) -> str:
        return ", ".join(f"{s} {platform.python_version()}" if s == STDLIB else s for s in self.sources)


# --- which files ------------------------------------------------------------------------------------------


def _stdlib_files() -> Iterator[_File]:
    root = Path(sysconfig.get_path("stdlib"))
    for file in _walk(root, root, _NOT_STDLIB):
        if file.path.suffix == ".py" and not file.name.startswith(_MACHINE_MADE):
            yield file


def _files(source: str) -> Iterator[_File]:
    path = expand_user(source)
    if path.is_dir():
        yield from _walk(path, path.absolute().parent, set())
    elif path.is_file():
        yield _File(path, path.name, asked_for=True)
    elif _WILDCARD.search(source) and (found := sorted(glob.glob(str(path), recursive=True))):
        fixed = Path(*path.parts[: _first_wildcard(path)]).absolute()
        for match in map(Path, found):
            if match.is_file():
                yield _File(match, match.absolute().relative_to(fixed).as_posix(), asked_for=False)
    else:
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{source}: no such file or folder{nearest(path.name, [*beside, STDLIB])}")


def _first_wildcard(path: Path) -> int:
    return next(i for i, part in enumerate(path.parts) if _WILDCARD.search(part))


def _walk(folder: Path, named_from: Path, excluded: set[str]) -> Iterator[_File]:
    """Every visible file below a folder, sorted by name."""
    paths: list[Path] = []
    for at, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in excluded and not f.startswith(".")]
        paths += [p for f in files if not f.startswith(".") and (p := Path(at, f)).is_file()]
    named = [(p.absolute().relative_to(named_from).as_posix(), p) for p in paths]
    for name, path in sorted(named):
        yield _File(path, name, asked_for=False)


# --- what is in them --------------------------------------------------------------------------------------


def _read(file: _File, declared: bool) -> Iterator[Document]:
    if file.path.suffix == ".jsonl":
        return _read_jsonl(file)
    if file.path.suffix == ".parquet":
        return _read_parquet(file)
    return iter([Document(file.name, _decode(file.path.read_bytes(), declared))])


def _decode(data: bytes, declared: bool) -> str:
    """UTF-8, or (`declared`) what a Python file's coding line says."""
    if b"\0" in data:
        raise NotTextError
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        if not declared:
            raise NotTextError from None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        raise NotTextError from None


def _read_jsonl(file: _File) -> Iterator[Document]:
    with file.path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file.path}, line {number}"
            try:
                record = json.loads(line)
            except ValueError:
                raise UserError(f"{where}: not valid JSON") from None
            if not isinstance(record, dict) or "text" not in record:
                found = ", ".join(record) if isinstance(record, dict) else type(record).__name__
                raise UserError(f"{where}: no field 'text'; found {found or 'nothing'}")
            yield Document(f"{file.name}:{number}", _checked(record["text"], where))


def _read_parquet(file: _File) -> Iterator[Document]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise UserError(f"{file.path}: Parquet needs pyarrow; run: pip install 'archlab[parquet]'") from None
    try:
        table = parquet.ParquetFile(file.path)
    except ArrowInvalid:
        raise UserError(f"{file.path}: not a Parquet file") from None
    columns = table.schema_arrow.names
    if "text" not in columns:
        raise UserError(f"{file.path}: no column 'text'; found {', '.join(columns)}")
    number = 0
    for rows in table.iter_batches(columns=["text"]):
        for text in rows.column(0).to_pylist():
            number += 1
            yield Document(f"{file.name}:{number}", _checked(text, f"{file.path}, row {number}"))


def _checked(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"{where}: 'text' is {type(text).__name__}; expected a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: 'text' holds half a surrogate pair, which is no Unicode text") from None
    return text
