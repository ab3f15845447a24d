"""Texts of one file: a file of text, or the records of JSONL, Parquet or Arrow.

Text and JSONL may be compressed, by gzip or zstd. A small file may unpack to much, so nothing is read without a limit.
"""

import gzip
import io
import json
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from archlab.config.core.text import visible
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.files import MEBIBYTE
from archlab.pricing.units import binary

LARGEST_UNPACKED = 1024 * MEBIBYTE
"""Bytes that a compressed file of text may hold. It is one document, and is held in memory as a whole."""

LONGEST_LINE = 128 * MEBIBYTE
"""Bytes of a line of JSONL. Its values take up to 24 times as much memory."""

LISTED_OF_FILE, LISTED = 5, 50
"""Most records of one file, and most in all, that are named with the reason when they are left out."""

_COMPRESSED = (".gz", ".zst")
_LINES = ".jsonl"
_TABLES = {".parquet": "a Parquet file", ".arrow": "a stream of Arrow"}
_MOST_ROWS = 1024
"""Rows of a Parquet file that are decoded together. Long ones are fewer: together about a mebibyte."""
_JSON = (
    (type(None), "null"), (bool, "true or false"), ((int, float), "a number"), (str, "a string"), (list, "an array"),
    (dict, "an object"),
)  # fmt: skip
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class Document(NamedTuple):
    """One text, and the name that decides to which split it belongs."""

    name: str
    text: str


class Invalid(NamedTuple):
    """A record or a file whose text cannot be read."""

    where: str
    """`a.jsonl, line 3`."""
    why: str
    lacks_field: bool = False
    """Whether it is the first record or a whole table, and has no such field: the others will not have it either."""


class NotText(NamedTuple):
    """A file that holds no UTF-8 text."""

    where: str
    why: str
    is_binary: bool


Content: TypeAlias = Document | Invalid | NotText


@dataclass
class Omissions:
    """Records, files and links that are left out of a text."""

    invalid: int = 0
    """Records and files that cannot be read."""
    not_text: int = 0
    """Files of folders that hold no UTF-8 text."""
    links: int = 0
    """Links that lead out of their folder."""
    first: list[str] = field(default_factory=list)
    """The first ones of each file, with the reason; none of the binary files, which are expected in folders."""
    _of_file: Counter[Path] = field(default_factory=Counter, repr=False, compare=False)

    def add(self, file: Path, where: str, why: str) -> None:
        """Name one, if it is among the first of its file."""
        self._of_file[file] += 1
        if self._of_file[file] <= LISTED_OF_FILE and len(self.first) < LISTED:
            self.first.append(visible(f"{where}: {why}"))

    def __str__(self) -> str:
        counts = {"invalid": self.invalid, "not UTF-8 text": self.not_text, "linked from elsewhere": self.links}
        return ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)


class _InvalidRecordError(Exception):
    """The reason why a record gives no text."""


class _MissingFieldError(_InvalidRecordError):
    """A record or a table has no such field."""


class SourceFile(NamedTuple):
    """A file that holds one text or several."""

    path: Path
    name: str
    homes: tuple[Path, ...] = ()
    """The folder in which it was found, and those to which a link in it may lead. Empty if the user named the file."""
    is_python: bool = False
    """Whether a coding line may name its encoding."""

    @property
    def kind(self) -> str:
        """The suffix that says what it holds. Compressed JSON is JSONL: that is how large texts are published."""
        if self.path.suffix not in _COMPRESSED:
            return self.path.suffix
        inner = Path(self.path.stem).suffix
        return _LINES if inner in (_LINES, ".json") else ".txt"

    @property
    def holds_records(self) -> bool:
        """Whether it holds several texts, each in fields of a record."""
        return self.kind in (_LINES, *_TABLES)


@dataclass(frozen=True)
class TextTemplate:
    """Rule that makes a text of a record: the values of fields, with text around them.

    A name with dots leads into nested records, unless a field has just that name.
    """

    fields: tuple[str, ...] = ("text",)
    around: tuple[str, ...] = ("", "")
    """The text before the first value, between two values, and after the last one."""

    @classmethod
    def parse(cls, text: str) -> "TextTemplate":
        """Return the template of `{title}: {meta.body}`; `{{` and `}}` are braces. UserError if it is none."""
        fields, around, at = list[str](), [""], 0
        for piece in _BRACES.finditer(text):
            around[-1] += text[at : piece.start()]
            at = piece.end()
            if piece[1]:
                fields.append(piece[1])
                around.append("")
            elif len(piece[0]) == 2:
                around[-1] += piece[0][0]
            else:
                hint = f"which begins or ends no name; a brace itself is {piece[0] * 2}"
                raise UserError(f"--template: {text!r} has {piece[0]} at character {piece.start() + 1}, {hint}")
        around[-1] += text[at:]
        if not fields:
            raise UserError(f"--template: {text!r} names no field; put the name of one in braces, as in {{title}}")
        return cls(tuple(fields), tuple(around))

    def fill(self, values: Sequence[object]) -> str:
        """Return the text, which is empty if all values are empty strings."""
        texts = [_checked(value, field) for value, field in zip(values, self.fields, strict=True)]
        rest = (text + after for text, after in zip(texts, self.around[1:], strict=True))
        return "".join([self.around[0], *rest]) if any(texts) else ""

    def __str__(self) -> str:
        if self.around == ("", ""):
            return f"field {self.fields[0]!r}"
        before, *after = (text.replace("{", "{{").replace("}", "}}") for text in self.around)
        fields = (f"{{{field}}}{text}" for field, text in zip(self.fields, after, strict=True))
        return f"template {''.join([before, *fields])!r}"


TEXT = TextTemplate()
"""The value of the field `text`."""


def contents(file: SourceFile, template: TextTemplate) -> Iterator[Content]:
    """Every text of the file, and what holds none, in order; EOFError, zlib.error or OSError for a damaged file."""
    if file.kind == _LINES:
        return _read_jsonl(file, template)
    if file.kind in _TABLES:
        return _read_table(file, template)
    return iter([_read_text(file)])


# --- text -------------------------------------------------------------------------------------------------


def _read_text(file: SourceFile) -> Content:
    content, is_packed = bytearray(), file.path.suffix in _COMPRESSED
    with _opened(file.path) as opened:
        while part := opened.read(MEBIBYTE):
            if b"\0" in part:
                return NotText(str(file.path), "binary; expected UTF-8 text, .jsonl, .parquet or .arrow", True)
            content += part
            if is_packed and len(content) > LARGEST_UNPACKED:
                hint = "cut it up, or unpack it"
                return Invalid(str(file.path), f"more than {binary(LARGEST_UNPACKED)} unpacked; {hint}")
    try:
        return Document(file.name, _decode(content, file.is_python))
    except UnicodeDecodeError as error:
        why = f"not UTF-8 (byte {error.start + 1:,}); expected UTF-8 text, .jsonl, .parquet or .arrow"
        return NotText(str(file.path), why, False)


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


def _decode(data: bytes | bytearray, is_python: bool) -> str:
    """Return the text of UTF-8, or of the encoding that the coding line of a Python file names."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not is_python:
            raise
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return data.decode(encoding)
        except SyntaxError:
            raise error from None


# --- records ----------------------------------------------------------------------------------------------


def _read_jsonl(file: SourceFile, template: TextTemplate) -> Iterator[Content]:
    with _opened(file.path) as lines:
        for number in count(1):
            line, where = lines.readline(LONGEST_LINE + 1), f"{file.path}, line {number}"
            if len(line) > LONGEST_LINE:
                yield Invalid(where, f"more than {binary(LONGEST_LINE)}; cut it up")
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MEBIBYTE)
            elif line.strip():
                try:
                    yield Document(f"{file.name}:{number}", template.fill(_values(line, template)))
                except _InvalidRecordError as error:
                    yield Invalid(where, str(error), number == 1 and isinstance(error, _MissingFieldError))
            if not line:
                return


def _values(line: bytes, template: TextTemplate) -> list[object]:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        raise _InvalidRecordError("not valid UTF-8") from None
    except (ValueError, RecursionError):
        raise _InvalidRecordError("not valid JSON") from None
    return [_value(record, field) for field in template.fields]


def _value(record: object, field: str) -> object:
    names = [field] if isinstance(record, dict) and field in record else field.split(".")
    for depth, name in enumerate(names):
        above = "".join(f"{outer}." for outer in names[:depth])
        if not isinstance(record, dict):
            found = f"{above[:-1]!r} is {_called(record)}" if above else f"found {_called(record)}"
            raise _MissingFieldError(f"no field {field!r}; {found}")
        if name not in record:
            raise _MissingFieldError(f"no field {field!r}{_listed([f'{above}{key}' for key in record], field)}")
        record = record[name]
    return record


def _read_table(file: SourceFile, template: TextTemplate) -> Iterator[Content]:
    arrow, number = _pyarrow(file.path, "parquet"), 0
    try:
        for row in _rows(file.path, template.fields):
            number += 1
            try:
                values = [_plain(value, field) for value, field in zip(row, template.fields, strict=True)]
                yield Document(f"{file.name}:{number}", template.fill(values))
            except _InvalidRecordError as error:
                yield Invalid(f"{file.path}, row {number}", str(error))
    except _InvalidRecordError as error:
        yield Invalid(str(file.path), str(error), isinstance(error, _MissingFieldError))
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        what = f"damaged after row {number}" if number else f"not {_TABLES[file.kind]}, or damaged"
        yield Invalid(str(file.path), f"{what}: {_first_line(error)}")


def _rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Each row's values of these fields, as pyarrow holds them; few rows are in memory at once."""
    from pyarrow import OSFile, compute, ipc, parquet

    if path.suffix == ".parquet":
        about = parquet.ParquetFile(path)
        columns = [_steps(about.schema_arrow, field) for field in fields]
        batches = _batches(path, about.metadata, sorted({".".join(column) for column in columns}))
    else:
        batches = ipc.open_stream(OSFile(os.fspath(path)))
        columns = [_steps(batches.schema, field) for field in fields]
    nested = compute.struct_field  # pyright: ignore[reportAttributeAccessIssue] - made when pyarrow is imported
    for batch in batches:
        tops = ((batch.column(top), below) for top, *below in columns)
        yield from zip(*(nested(top, below) if below else top for top, below in tops), strict=True)


def _plain(value: Any, field: str) -> object:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        raise _InvalidRecordError(f"{field!r} is not valid UTF-8") from None


def _batches(path: Path, metadata: Any, columns: list[str]) -> Iterator[Any]:
    """Batches of rows that together have about a mebibyte, by the average row of each row group."""
    from pyarrow import parquet

    names = {metadata.schema.column(i).path for i in range(metadata.num_columns)}
    # Values that repeat are kept once: a dictionary of a kilobyte may stand for gigabytes.
    repeated = [column for column in columns if column in names]
    table = parquet.ParquetFile(
        path, metadata=metadata, page_checksum_verification=True, buffer_size=MEBIBYTE, read_dictionary=repeated
    )
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        each = (about.column(i) for i in range(about.num_columns))
        size = sum(column.total_uncompressed_size for column in each if column.path_in_schema in columns)
        rows = min(max(about.num_rows * MEBIBYTE // max(size, 1), 1), _MOST_ROWS)
        yield from table.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def _steps(schema: Any, field: str) -> list[str]:
    """The names that lead to the field, from the table's column on."""
    steps = [field] if schema.get_field_index(field) >= 0 else field.split(".")
    at = schema
    for depth, name in enumerate(steps):
        above = "".join(f"{outer}." for outer in steps[:depth])
        names = [f"{above}{inner}" for inner in _names(at)]
        if names.count(f"{above}{name}") != 1:
            raise _MissingFieldError(f"no column {field!r}{_listed(names, field)}")
        at = at.field(name).type
    return steps


def _names(type_or_schema: Any) -> list[str]:
    """Names of a schema's columns or of a struct's fields; none of any other type."""
    from pyarrow import Schema, types

    if isinstance(type_or_schema, Schema):
        return type_or_schema.names
    if types.is_struct(type_or_schema):
        return [type_or_schema[i].name for i in range(type_or_schema.num_fields)]
    return []


def _listed(names: list[str], missing: str) -> str:
    """Return the name that is near the missing one, if there is any, and the first names."""
    return f"{nearest(missing, names) or ';'} found: {', '.join(names[:20]) or 'nothing'}"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _called(value: object) -> str:
    """Return the name of the value's type in JSON, with an article."""
    return next((name for kinds, name in _JSON if isinstance(value, kinds)), type(value).__name__)


def _checked(text: object, field: str) -> str:
    if not isinstance(text, str):
        raise _InvalidRecordError(f"{field!r} is {_called(text)}; expected a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _InvalidRecordError(f"{field!r} holds half a surrogate pair, which is no Unicode text") from None
    return text
