"""From sources to documents: the source code of the running Python, text files, folders, globs, JSONL, Parquet, Arrow.

Text and JSONL may be compressed, by gzip or zstd.
"""

import gzip
import io
import json
import os
import platform
import re
import sysconfig
import tokenize
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from archlab.config.problems import nearest
from archlab.config.text import visible
from archlab.data.saved import ABOUT_IT, HUB, SPLITS, hub_files
from archlab.errors import UserError
from archlab.files import expand_user

STDLIB = "python-stdlib"
"""A source that every machine has: the standard library of the running Python."""

FIELD = "text"
"""The field of a record of JSONL, Parquet or Arrow that holds the text, unless another one is named."""

_NOT_STDLIB = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_MACHINE_MADE = ("config-", "_sysconfigdata")
_COMPRESSED = (".gz", ".zst")
_LINES = ".jsonl"
_TABLES = {".parquet": "a Parquet file", ".arrow": "a stream of Arrow"}
_JSON = (
    (type(None), "null"), (bool, "true or false"), ((int, float), "a number"), (str, "a string"), (list, "an array"),
    (dict, "an object"),
)  # fmt: skip
_WILDCARD = re.compile(r"[*?\[]")


class Document(NamedTuple):
    """One text, and the name that decides to which split it belongs."""

    name: str
    text: str


class File(NamedTuple):
    """A file that holds one text or several."""

    path: Path
    name: str
    named_by_user: bool
    """Not found in a folder. Then it is an error if the file is binary."""
    is_python: bool = False
    """Then a coding line may name its encoding."""

    @property
    def kind(self) -> str:
        """The suffix that says what it holds. Compressed JSON is JSONL: that is how large texts are published."""
        if self.path.suffix not in _COMPRESSED:
            return self.path.suffix
        inner = Path(self.path.stem).suffix
        return _LINES if inner in (_LINES, ".json") else ".txt"

    @property
    def holds_records(self) -> bool:
        """Several texts, each in a field of a record."""
        return self.kind in (_LINES, *_TABLES)


class NotTextError(Exception):
    """The file holds no UTF-8 text."""


@dataclass
class Corpus:
    """The documents of some sources, in a fixed order. Every iteration reads them from disk again."""

    sources: Sequence[str]
    field: str = FIELD
    """Where records have their text."""
    skipped: int = 0
    """Binary files left out by the latest iteration."""

    def files(self) -> Iterator[File]:
        """The files that an iteration reads, each once: under two names, a file could belong to both splits."""
        if not all(self.sources) or not self.sources:
            raise UserError(
                f"no source; give {STDLIB}, {HUB}NAME, or files, folders or globs of text, JSONL or Parquet"
            )
        seen: set[str] = set()
        for source in self.sources:
            for file in _files(source):
                if (real := os.path.realpath(file.path)) not in seen:
                    seen.add(real)
                    yield file

    def __iter__(self) -> Iterator[Document]:
        self.skipped = 0
        for file in self.files():
            try:
                yield from (d for d in _read(file, self.field) if d.text)
            except NotTextError:
                if file.named_by_user:
                    raise UserError(f"{file.path}: binary; expected UTF-8 text, .jsonl, .parquet or .arrow") from None
                self.skipped += 1
            except MemoryError:
                size = file.path.stat().st_size
                raise UserError(f"{file.path}: {size:,} bytes, more than fit into memory; cut it up") from None
            except (EOFError, zlib.error) as error:
                raise UserError(f"{file.path}: damaged: {error}") from None
            except OSError as error:
                raise UserError(f"{file.path}: {error.strerror or f'damaged: {error}'}") from None

    def __str__(self) -> str:
        field = "" if self.field == FIELD else f" (field {self.field!r})"
        named = (f"{s} {platform.python_version()}" if s == STDLIB else s for s in self.sources)
        return visible(", ".join(named) + field)


# --- which files ------------------------------------------------------------------------------------------


def _stdlib_files() -> Iterator[File]:
    root = Path(sysconfig.get_path("stdlib"))
    for file in _walk(root, root, _NOT_STDLIB):
        if file.path.suffix == ".py" and not file.name.startswith(_MACHINE_MADE):
            yield file._replace(is_python=True)


def _files(source: str) -> Iterator[File]:
    if source == STDLIB:
        yield from _stdlib_files()
        return
    if source.startswith(HUB):
        for path, name in hub_files(source):
            yield File(path, name, named_by_user=True)
        return
    path = expand_user(source)
    if (path / SPLITS).is_file():
        raise UserError(f"{source}: a data set with splits; name the folder of one of them: {_folders(path)}")
    if path.is_dir():
        yield from _walk(path, path.absolute().parent, set())
    elif path.is_file():
        yield File(path, path.name, named_by_user=True)
    elif _WILDCARD.search(source) and (found := _glob(path)):
        yield from found
    elif path.exists():
        raise UserError(f"{source}: a pipe or a device; allowed: a regular file or a folder")
    elif path.is_symlink():
        raise UserError(f"{source}: a link that leads nowhere, or in a circle")
    else:
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{source}: no such file or folder{nearest(path.name, [*beside, STDLIB])}")


def _folders(path: Path) -> str:
    return ", ".join(sorted(inside.name for inside in path.iterdir() if inside.is_dir()))


def _glob(path: Path) -> list[File]:
    """The visible files that match, sorted. As in a folder, `**` follows no links, which may lead in circles."""
    first = next(i for i, part in enumerate(path.parts) if _WILDCARD.search(part))
    fixed, wanted = Path(*path.parts[:first]).absolute(), list(path.parts[first:])
    if wanted[-1] == "**":
        wanted.append("*")
    hidden = any(part.startswith(".") for part in wanted)
    try:
        found = sorted(fixed.glob("/".join(wanted)))
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{path}: {error}") from None
    named = [(file, file.relative_to(fixed)) for file in dict.fromkeys(found)]
    visible = [(file, name) for file, name in named if hidden or not any(p.startswith(".") for p in name.parts)]
    return [File(file, name.as_posix(), named_by_user=False) for file, name in visible if file.is_file()]


def _walk(folder: Path, named_from: Path, excluded: set[str]) -> Iterator[File]:
    """Every visible file below a folder, sorted by name."""
    paths: list[Path] = []
    for at, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in excluded and not f.startswith(".")]
        files = [f for f in files if f not in ABOUT_IT] if set(files) >= ABOUT_IT else files
        paths += [p for f in files if not f.startswith(".") and (p := Path(at, f)).is_file()]
    named = [(p.absolute().relative_to(named_from).as_posix(), p) for p in paths]
    for name, path in sorted(named):
        yield File(path, name, named_by_user=False)


# --- what is in them --------------------------------------------------------------------------------------


def _read(file: File, field: str) -> Iterator[Document]:
    if file.kind == _LINES:
        return _read_jsonl(file, field)
    if file.kind in _TABLES:
        return _read_table(file, field)
    with _opened(file.path) as content:
        return iter([Document(file.name, _decode(content.read(), file.is_python))])


def _opened(path: Path) -> io.BufferedIOBase:
    """The file's content, decompressed as it is read."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        arrow = _pyarrow(path, "zstd")  # zstandard's reader takes a file that was cut for a whole one
        return io.BufferedReader(arrow.CompressedInputStream(arrow.OSFile(os.fspath(path)), "zstd"))
    return path.open("rb")


def _pyarrow(path: Path, extra: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"{path}: needs pyarrow; run: pip install 'archlab[{extra}]'") from None
    return pyarrow


def _decode(data: bytes, is_python: bool) -> str:
    """As UTF-8, or as the coding line of a Python file says."""
    if b"\0" in data:
        raise NotTextError
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        if not is_python:
            raise NotTextError from None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        raise NotTextError from None


def _read_jsonl(file: File, field: str) -> Iterator[Document]:
    with _opened(file.path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file.path}, line {number}"
            try:
                record = json.loads(line)
            except UnicodeDecodeError:
                raise UserError(f"{where}: not valid UTF-8") from None
            except (ValueError, RecursionError):
                raise UserError(f"{where}: not valid JSON") from None
            if not isinstance(record, dict):
                raise UserError(f"{where}: no field {field!r}; found {_called(record)}")
            if field not in record:
                raise UserError(f"{where}: no field {field!r}; {_others(field, list(record))}")
            yield Document(f"{file.name}:{number}", _checked(record[field], field, where))


def _read_table(file: File, field: str) -> Iterator[Document]:
    arrow, number = _pyarrow(file.path, "parquet"), 0
    try:
        for column in _column(file.path, field):
            for value in column:
                number += 1
                yield Document(f"{file.name}:{number}", _checked(value.as_py(), field, f"{file.path}, row {number}"))
    except UnicodeDecodeError:
        where = f"{file.path}, row {number}: {field!r}" if number else f"{file.path}: its header"
        raise UserError(f"{where} is not valid UTF-8") from None
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        what = f"damaged after row {number}" if number else f"not {_TABLES[file.kind]}, or damaged"
        raise UserError(f"{file.path}: {what}: {_first_line(error)}") from None


def _column(path: Path, field: str) -> Iterator[Any]:
    """The field's values, some rows at a time."""
    from pyarrow import OSFile, ipc, parquet

    if path.suffix == ".parquet":
        table = parquet.ParquetFile(path, page_checksum_verification=True)
        names, batches = table.schema_arrow.names, table.iter_batches(columns=[field])
    else:
        batches = ipc.open_stream(OSFile(os.fspath(path)))
        names = batches.schema.names
    if names.count(field) != 1:
        raise UserError(f"{path}: no column {field!r}; {_others(field, names)}")
    for rows in batches:
        yield rows.column(field)


def _others(field: str, found: list[str]) -> str:
    """Which fields there are, where the one that was wanted is missing."""
    some = ", ".join(found[:20]) or "nothing"
    return f"found {some}{nearest(field, found)}; `archlab data --field` names the one to read"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _called(value: object) -> str:
    """As JSON calls it."""
    return next((name for kinds, name in _JSON if isinstance(value, kinds)), type(value).__name__)


def _checked(text: object, field: str, where: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"{where}: {field!r} is {_called(text)}; expected a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: {field!r} holds half a surrogate pair, which is no Unicode text") from None
    return text
