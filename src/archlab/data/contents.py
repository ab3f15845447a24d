"""Reading of documents from one file: a text file, or the records of a JSONL, Parquet, Arrow or TSV file.

Text, JSONL and TSV files may be compressed with gzip or zstd. A small file may decompress to a large one, so every read
has a limit.
"""

import gzip
import io
import json
import os
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from archlab.config.core.text import visible
from archlab.config.problems import nearest
from archlab.data.docstrings import prose
from archlab.data.template import (
    InvalidRecordError,
    MissingFieldError,
    PairFields,
    RecordTemplate,
    TextTemplate,
    json_type,
)
from archlab.extras import needs_extra
from archlab.files import MEBIBYTE
from archlab.pricing.units import binary, plural

LARGEST_UNPACKED = 1024 * MEBIBYTE
"""Maximum decompressed size of a text file in bytes. The file is one document and is read into memory as a whole."""

LONGEST_LINE = 128 * MEBIBYTE
"""Maximum length of a JSONL or TSV line in bytes. The parsed line takes up to 24 times as much memory."""

LISTED_OF_FILE, LISTED = 5, 50
"""Maximum number of skipped records that are listed with the reason: per file, and in total."""

_COMPRESSED = (".gz", ".zst")
_LINES = ".jsonl"
_COLUMNS = ".tsv"
_TABLES = {".parquet": "a Parquet file", ".arrow": "an Arrow stream"}
_MOST_ROWS = 1024
"""Maximum number of rows per batch when a Parquet file is decoded.

If rows are long, a batch has fewer rows: about one mebibyte of data.
"""


class Document(NamedTuple):
    """Name and text of a document. The hash of the name can determine the fold of the document."""

    name: str
    text: str
    """Text, source of a pair, or messages of a conversation as JSON."""
    target: str | None = None
    """Target of a pair, whose source is `text`. None if the document is not a pair."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or the source and the target of a pair."""
        return (self.text,) if self.target is None else (self.text, self.target)


class Invalid(NamedTuple):
    """A record or file whose text cannot be read."""

    where: str
    """Location for messages, such as `a.jsonl, line 3`."""
    why: str
    lacks_field: bool = False
    """Whether a field of the template is missing from the first record, or from a whole table.

    The field is then probably missing from all records.
    """


class NotText(NamedTuple):
    """A file that is not UTF-8 text."""

    where: str
    why: str
    is_binary: bool


Content: TypeAlias = Document | Invalid | NotText


@dataclass
class Omissions:
    """Records, files and links that are left out of a corpus."""

    invalid: int = 0
    """Number of records and files that cannot be read."""
    not_text: int = 0
    """Number of files in folders that are not UTF-8 text."""
    links: int = 0
    """Number of links that lead out of their folder."""
    first: list[str] = field(default_factory=list)
    """First few omissions per file, each with the reason. Binary files are not listed: many folders have some."""
    _of_file: Counter[Path] = field(default_factory=Counter, repr=False, compare=False)

    def add(self, file: Path, where: str, why: str) -> None:
        """List an omission, unless the maximum for this file or for the corpus is already reached."""
        self._of_file[file] += 1
        if self._of_file[file] <= LISTED_OF_FILE and len(self.first) < LISTED:
            self.first.append(visible(f"{where}: {why}"))

    def __str__(self) -> str:
        counts = {"invalid": self.invalid, "not UTF-8 text": self.not_text, "linked from elsewhere": self.links}
        return ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)


class SourceFile(NamedTuple):
    """A file with one or several documents."""

    path: Path
    name: str
    homes: tuple[Path, ...] = ()
    """Allowed folders: the file must be in one of them after links are resolved. Empty if the user named the file."""
    python: Literal["code", "prose"] | None = None
    """Text of a Python file: its code, or the prose of its docstrings. A comment may declare the encoding (PEP 263)."""

    @property
    def kind(self) -> str:
        """File type, as a suffix. A compressed .json file counts as JSONL, as in many published corpora."""
        if self.path.suffix not in _COMPRESSED:
            return self.path.suffix
        inner = Path(self.path.stem).suffix
        if inner == _COLUMNS:
            return inner
        return _LINES if inner in (_LINES, ".json") else ".txt"

    @property
    def holds_records(self) -> bool:
        """Whether the file consists of records (JSONL, Parquet or Arrow) instead of plain text."""
        return self.kind in (_LINES, *_TABLES)


def contents(file: SourceFile, template: RecordTemplate) -> Iterator[Content]:
    """Yield, in order, each document of the file and each record that has no usable text.

    Raise EOFError, zlib.error or OSError if the file is damaged.
    """
    if file.kind == _LINES:
        return _read_lines(file, template, partial(_values, template))
    if file.kind in _TABLES:
        return _read_table(file, template)
    if isinstance(template, TextTemplate):
        return iter([_read_text(file)])
    if file.kind == _COLUMNS and isinstance(template, PairFields):
        return _read_lines(file, template, _Columns(template.fields))
    formats = ".jsonl, .parquet, .arrow or .tsv" if isinstance(template, PairFields) else ".jsonl, .parquet or .arrow"
    return iter([Invalid(str(file.path), f"not a file of {template.unit}; expected {formats}")])


# --- text -------------------------------------------------------------------------------------------------


def _read_text(file: SourceFile) -> Content:
    content, is_packed = bytearray(), file.path.suffix in _COMPRESSED
    with _opened(file.path) as opened:
        while part := opened.read(MEBIBYTE):
            if b"\0" in part:
                return NotText(str(file.path), "binary file; expected UTF-8 text, .jsonl, .parquet or .arrow", True)
            content += part
            if is_packed and len(content) > LARGEST_UNPACKED:
                hint = "split the file, or unpack it"
                return Invalid(str(file.path), f"larger than {binary(LARGEST_UNPACKED)} when unpacked; {hint}")
    try:
        text = _decode(content, file.python is not None)
        return Document(file.name, prose(text) if file.python == "prose" else text)
    except UnicodeDecodeError as error:
        why = f"not UTF-8 (byte {error.start + 1:,}); expected UTF-8 text, .jsonl, .parquet or .arrow"
        return NotText(str(file.path), why, False)


def _opened(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        arrow = _pyarrow(path, "zstd")  # the reader of zstandard accepts truncated files
        return io.BufferedReader(arrow.CompressedInputStream(arrow.OSFile(os.fspath(path)), "zstd"))
    return path.open("rb")


def _pyarrow(path: Path, extra: str) -> Any:
    with needs_extra(extra, str(path)):
        import pyarrow
    return pyarrow


def _decode(data: bytes | bytearray, is_python: bool) -> str:
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


def _read_lines(
    file: SourceFile, template: RecordTemplate, values: Callable[[int, bytes], list[object] | None]
) -> Iterator[Content]:
    """Yield a document for each line. `values` returns those of the fields, or None for a line without a record."""
    with _opened(file.path) as lines:
        for number in count(1):
            line, where = lines.readline(LONGEST_LINE + 1), f"{file.path}, line {number}"
            if len(line) > LONGEST_LINE:
                yield Invalid(where, f"longer than {binary(LONGEST_LINE)}; split the line")
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MEBIBYTE)
            elif line:
                try:
                    if record := values(number, line):
                        yield Document(f"{file.name}:{number}", *template.texts(record))
                except InvalidRecordError as error:
                    yield Invalid(where, str(error), number == 1 and isinstance(error, MissingFieldError))
            if not line:
                return


def _values(template: RecordTemplate, _: int, line: bytes) -> list[object] | None:
    if not line.strip():
        return None
    try:
        record = json.loads(line, object_pairs_hook=_with_unique_keys)
    except UnicodeDecodeError:
        raise InvalidRecordError("not valid UTF-8") from None
    except (ValueError, RecursionError):
        raise InvalidRecordError("not valid JSON") from None
    return [*(_value(record, field) for field in template.fields), *map(record.get, template.optional)]


def _with_unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object. Raise InvalidRecordError if a key is repeated, because its value is then not defined."""
    record = dict(pairs)
    if len(record) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidRecordError(f"an object has several values for the key {repeated!r}; allowed: one")
    return record


def _value(record: object, field: str) -> object:
    names = [field] if isinstance(record, dict) and field in record else field.split(".")
    for depth, name in enumerate(names):
        above = "".join(f"{outer}." for outer in names[:depth])
        if not isinstance(record, dict):
            what = f"{above[:-1]!r} is {json_type(record)}" if above else f"found {json_type(record)}"
            raise MissingFieldError(f"no field {field!r}; {what}")
        if name not in record:
            raise MissingFieldError(f"no field {field!r}{_listed([f'{above}{key}' for key in record], field)}")
        record = record[name]
    return record


class _Columns:
    """Function that takes the fields of a pair from a line of a .tsv file, whose first line may name the columns."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._n_columns, self._places = 0, list[int]()

    def __call__(self, number: int, line: bytes) -> list[object] | None:
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InvalidRecordError("not valid UTF-8") from None
        cells = text.removesuffix("\n").removesuffix("\r").split("\t")
        if number == 1:
            self._n_columns = len(cells)
            names = None if self._fields[0].isdecimal() else cells
            self._places = [self._place(field, names) for field in self._fields]
            if names:
                return None
        if not self._places:
            raise InvalidRecordError("the first line of the file is invalid, so the columns are unknown")
        if len(cells) != self._n_columns:
            raise InvalidRecordError(
                f"{plural(len(cells), 'column')}; expected {self._n_columns}, as in the first line"
            )
        return [cells[place] for place in self._places]

    def _place(self, field: str, names: list[str] | None) -> int:
        if names is None:
            if not 1 <= int(field) <= self._n_columns:
                raise MissingFieldError(f"no column {field}; found: columns 1 to {self._n_columns}")
            return int(field) - 1
        if names.count(field) > 1:
            raise MissingFieldError(f"the first line names {names.count(field)} columns {field!r}; allowed: one")
        if field not in names:
            hint = "if the file has no line of names, give two numbers of columns, as in 1,2"
            raise MissingFieldError(f"no column {field!r}{_listed(names, field)}; {hint}")
        return names.index(field)


def _read_table(file: SourceFile, template: RecordTemplate) -> Iterator[Content]:
    arrow, number = _pyarrow(file.path, "parquet"), 0
    try:
        for row in _rows(file.path, template):
            number += 1
            try:
                values = (_plain(row.get(field), field) for field in (*template.fields, *template.optional))
                yield Document(f"{file.name}:{number}", *template.texts([*values]))
            except InvalidRecordError as error:
                yield Invalid(f"{file.path}, row {number}", str(error))
    except InvalidRecordError as error:
        yield Invalid(str(file.path), str(error), isinstance(error, MissingFieldError))
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        what = f"damaged after row {number}" if number else f"not {_TABLES[file.kind]}, or damaged"
        yield Invalid(str(file.path), f"{what}: {_first_line(error)}")


def _rows(path: Path, template: RecordTemplate) -> Iterator[dict[str, Any]]:
    from pyarrow import OSFile, compute, ipc, parquet

    if path.suffix == ".parquet":
        about = parquet.ParquetFile(path)
        columns = _columns(about.schema_arrow, template)
        batches = _batches(path, about.metadata, sorted({*map(".".join, columns.values())}))
    else:
        batches = ipc.open_stream(OSFile(os.fspath(path)))
        columns = _columns(batches.schema, template)
    nested = compute.struct_field  # pyright: ignore[reportAttributeAccessIssue] - created when pyarrow is imported
    for batch in batches:
        tops = ((batch.column(top), below) for top, *below in columns.values())
        for row in zip(*(nested(top, below) if below else top for top, below in tops), strict=True):
            yield dict(zip(columns, row, strict=True))


def _columns(schema: Any, template: RecordTemplate) -> dict[str, list[str]]:
    return {field: _steps(schema, field) for field in (*template.fields, *({*template.optional} & {*schema.names}))}


def _plain(value: Any, field: str) -> object:
    try:
        return None if value is None else value.as_py()
    except UnicodeDecodeError:
        raise InvalidRecordError(f"{field!r} is not valid UTF-8") from None


def _batches(path: Path, metadata: Any, columns: list[str]) -> Iterator[Any]:
    from pyarrow import parquet

    names = {metadata.schema.column(i).path for i in range(metadata.num_columns)}
    # Repeated values are kept only once: a dictionary of a kilobyte may expand to gigabytes.
    repeated = [column for column in columns if column in names]
    table = parquet.ParquetFile(
        path, metadata=metadata, page_checksum_verification=True, buffer_size=MEBIBYTE, read_dictionary=repeated
    )
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        chunks = (about.column(i) for i in range(about.num_columns))
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)
        rows = min(max(about.num_rows * MEBIBYTE // max(size, 1), 1), _MOST_ROWS)
        yield from table.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def _steps(schema: Any, field: str) -> list[str]:
    steps = [field] if schema.get_field_index(field) >= 0 else field.split(".")
    at = schema
    for depth, name in enumerate(steps):
        above = "".join(f"{outer}." for outer in steps[:depth])
        names = [f"{above}{inner}" for inner in _names(at)]
        if names.count(f"{above}{name}") != 1:
            raise MissingFieldError(f"no column {field!r}{_listed(names, field)}")
        at = at.field(name).type
    return steps


def _names(type_or_schema: Any) -> list[str]:
    from pyarrow import Schema, types

    if isinstance(type_or_schema, Schema):
        return type_or_schema.names
    if types.is_struct(type_or_schema):
        return [type_or_schema[i].name for i in range(type_or_schema.num_fields)]
    return []


def _listed(names: list[str], missing: str) -> str:
    return f"{nearest(missing, names) or ';'} found: {', '.join(names[:20]) or 'nothing'}"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
