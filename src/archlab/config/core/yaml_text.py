"""YAML 1.2 for configs. Only plain values are allowed, and keys must be text. Sizes are limited, but no config comes
near the limits.

PyYAML implements YAML 1.1, in which `010` is 8, `1:30` is 90 and `on` is true. This module combines PyYAML's parser
with the core schema of YAML 1.2. Anchors, aliases and merge keys (`<<`) are supported. Errors name the file and the
line.

If libyaml is installed, it parses the text first, because it is twenty times as fast as PyYAML's own parser. If libyaml
reports an error, PyYAML's own parser parses the text again, because its error messages are easier to translate.
"""

import re
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml import events as ev

from archlab.config.core.merge import MOST_DEPTH, Raw
from archlab.errors import UserError
from archlab.files import MEBIBYTE, read_text

MOST_BYTES = MEBIBYTE
"""Largest allowed size of a YAML file in bytes. Configs are much smaller, and reading a larger file would take
seconds."""
MOST_VALUES = 50_000
"""Largest allowed number of values in a YAML file, with aliases expanded. A pattern of 10,000 layers stays below this
limit."""
LONG_TEXT = 1000
"""Length in characters that counts as one more value towards MOST_VALUES. This limits the total length of long strings
that aliases repeat."""
MOST_DIGITS = 300
"""Largest allowed number of digits in a number. No config field can hold a longer number."""

_CORE: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"|~|null|Null|NULL"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)
"""Regular expressions of plain scalars and their conversions (YAML 1.2.2, section 10.3.2). Any other plain scalar is
a string."""


_TOO_DEEP = f"values are nested more than {MOST_DEPTH} deep"

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_PLAIN_WORDS: tuple[tuple[str, str, bool], ...] = (
    (
        "mapping values are not allowed",
        "unexpected `:`; put each key on its own line, indent all keys of a section alike, and put text that contains "
        "`: ` in quotes",
        False,
    ),
    ("sequence entries are not allowed", "unexpected `- `; put each list item on its own line", False),
    (r"found character '\\t'", "unexpected tab; indent with spaces", False),
    ("found character '(.)' that cannot start", r"a value cannot begin with `\1`; put the value in quotes", False),
    (
        "expected <block end>, but found '<scalar>'",
        "text after the end of a value; put the whole value in quotes",
        False,
    ),
    ("expected <block end>, but found '([]}])'", r"unexpected `\1`; remove it", False),
    (
        "expected <block end>|expected '<document start>'",
        "the line does not fit the lines above it; indent all keys of a section alike, and begin each list item with "
        "`- `",
        False,
    ),
    ("expected ',' or '(.)'", r"a list or mapping in brackets is not closed; add a comma or `\1`", False),
    ("could not find expected ':'", "a key without `:`; write `key: value`", True),
    ("found unexpected end of stream", "text in quotes is not closed; add the closing quote", True),
    (
        r"found unknown escape character '\\?(.*)'",
        r"`\\\1` in double quotes is not an escape sequence; write `\\\\` for a backslash",
        False,
    ),
    ("expected alphabetic or numeric", "`*` or `&` without a name; put text that begins with either in quotes", False),
    ("expected the node content", "a value is missing, or a special character is not in quotes", False),
)
"""Translations of PyYAML's errors: the pattern of the error, the message for the user, and a boolean. If it is true,
the message names the line where the invalid part begins. If it is false, the message names the line where PyYAML
stopped."""


class _Node(NamedTuple):
    value: Any
    size: int
    """Number of values in the node, including itself, with aliases expanded."""
    height: int
    """Nesting depth of the node's content."""


class _Builder:
    """Builder that turns parser events into plain Python values. All aliases of an anchor share one value. The
    limits on the size of a file count each alias as if its value were written out again."""

    def __init__(self, text: str, source: str, loader: Any) -> None:
        self._events: Iterator[ev.Event] = yaml.parse(text, Loader=loader)
        self._source = source
        self._anchored: dict[str, _Node | None] = {}
        self._size = 0

    def document(self) -> Any:
        documents: list[Any] = []
        for event in self._events:
            if isinstance(event, ev.DocumentStartEvent):
                if documents:
                    raise self._error_at(event, "a second document (---); allowed: one")
                documents.append(self._node(next(self._events), 1).value)
        return documents[0] if documents else None

    def _node(self, event: ev.Event, depth: int) -> _Node:
        if isinstance(event, ev.AliasEvent):
            return self._counted(event, self._alias(event), depth)
        assert isinstance(event, ev.NodeEvent)
        if tag := getattr(event, "tag", None):
            name = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._error_at(event, f"a tag ({name}) is not allowed; leave it out, and put text in quotes")
        if event.anchor:
            self._anchored[event.anchor] = None
        if isinstance(event, ev.MappingStartEvent):
            node = self._mapping(event, depth)
        elif isinstance(event, ev.SequenceStartEvent):
            node = self._sequence(event, depth)
        else:
            assert isinstance(event, ev.ScalarEvent)
            node = self._counted(event, _Node(self._scalar(event), 1 + len(event.value) // LONG_TEXT, 0), depth)
        if event.anchor:
            self._anchored[event.anchor] = node
        return node

    def _counted(self, event: ev.Event, node: _Node, depth: int) -> _Node:
        self._size += node.size
        if self._size > MOST_VALUES:
            raise self._error_at(event, f"more than {MOST_VALUES:,} values, with aliases (*) written out")
        if depth + node.height > MOST_DEPTH:
            raise self._error_at(event, _TOO_DEEP)
        return node

    def _alias(self, event: ev.AliasEvent) -> _Node:
        if event.anchor not in self._anchored:
            raise self._error_at(event, f"not valid YAML: the alias *{event.anchor} has no anchor before it")
        node = self._anchored[event.anchor]
        if node is None:
            raise self._error_at(
                event, f"the alias *{event.anchor} refers to a value that contains it; write the value out"
            )
        return node

    def _scalar(self, event: ev.ScalarEvent) -> Any:
        if not event.implicit[0]:  # in quotes, or a block of text
            return event.value
        meaning = next((read for pattern, read in _CORE if pattern.fullmatch(event.value)), str)
        if meaning is not str and len(event.value) > MOST_DIGITS:
            raise self._error_at(event, f"a number of {len(event.value):,} digits; allowed: up to {MOST_DIGITS}")
        return meaning(event.value)

    def _sequence(self, event: ev.Event, depth: int) -> _Node:
        before, height, values = self._size, 0, list[Any]()
        self._counted(event, _Node(None, 1, 0), depth)
        while not isinstance(item := next(self._events), ev.SequenceEndEvent):
            node = self._node(item, depth + 1)
            values.append(node.value)
            height = max(height, node.height + 1)
        return _Node(values, self._size - before, height)

    def _mapping(self, event: ev.Event, depth: int) -> _Node:
        before, height = self._size, 0
        values, merged = Raw(), list[Raw]()
        self._counted(event, _Node(None, 1, 0), depth)
        while not isinstance(key := next(self._events), ev.MappingEndEvent):
            name = self._key(key)
            self._size += name.count(".")  # each dot of a key adds a section
            node = self._node(next(self._events), depth + 1)
            height = max(height, node.height + 1)
            if isinstance(key, ev.ScalarEvent) and key.implicit[0] and name == "<<":
                merged += self._merged(key, node.value)
            elif name in values:
                raise self._error_at(key, f"not valid YAML: {name} is given twice")
            else:
                values[name] = node.value
        below = Raw()
        for mapping in reversed(merged):  # the first mapping that has a key wins
            below.update(mapping)
        return _Node({**below, **values}, self._size - before, height)

    def _key(self, event: ev.Event) -> str:
        if isinstance(event, ev.AliasEvent):
            name = self._alias(event).value
        else:
            name = event.value if isinstance(event, ev.ScalarEvent) else None
            if name is not None:
                self._node(event, 1)
        if not isinstance(name, str) or not name:
            raise self._error_at(event, "not valid YAML for a config: a key must be text, and not empty")
        return name

    def _merged(self, event: ev.Event, value: Any) -> list[Raw]:
        mappings = value if isinstance(value, list) else [value]
        if not all(isinstance(mapping, dict) for mapping in mappings):
            raise self._error_at(event, "<< needs keys and values (a mapping), or a list of mappings")
        return mappings

    def _error_at(self, event: ev.Event, message: str) -> UserError:
        return UserError(f"{self._source}, line {event.start_mark.line + 1}: {message}")


def parse_integer(text: str, read: Callable[[Any], Any]) -> int | None:
    """Return an integer that is written as in a config, such as 32Ki, or None if the text is not an integer.

    `read` is the function that converts suffixes, as for a field of a config. Raise UserError if the text is not valid.
    """
    number = read(parse_yaml(text, "a number"))
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def parse_yaml(text: str, source: str) -> Any:
    """Return the value of a YAML text. If the text is not valid, raise a UserError that names `source` and the line."""
    try:
        return _Builder(text, source, _FAST).document()
    except yaml.MarkedYAMLError as error:
        # PyYAML's own parser would take seconds: the square of the depth.
        if error.problem and "maximum nesting depth" in error.problem and error.problem_mark:
            line = error.problem_mark.line + 1
            raise UserError(f"{source}, line {line}: {_TOO_DEEP}") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        pass
    try:
        return _Builder(text, source, yaml.SafeLoader).document()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(
            f"{source}, line {line}: a character ({error.character:#x}) that YAML does not allow; remove it"
        ) from None
    except yaml.MarkedYAMLError as error:
        problem, is_at_start = _in_plain_words(error)
        mark = error.context_mark if is_at_start and error.context_mark else error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}{line}: not valid YAML: {problem}") from None
    except (ValueError, OverflowError):  # PyYAML passes any number to Python's chr
        bad_escape = re.search(r"\\U(?!000|0010)", text)
        line = text.count("\n", 0, bad_escape.start() if bad_escape else 0) + 1
        raise UserError(
            f"{source}, line {line}: the escape \\U… names no Unicode character; allowed: up to \\U0010FFFF"
        ) from None


def _in_plain_words(error: yaml.MarkedYAMLError) -> tuple[str, bool]:
    for pattern, words, is_at_start in _PLAIN_WORDS:
        if match := re.match(pattern, error.problem or ""):
            return match.expand(words), is_at_start
    return error.problem or "", False


def read_yaml(path: Path | Traversable) -> Raw:
    """Return the content of a YAML file, which must be a mapping. Dotted keys are not expanded."""
    value = parse_yaml(read_text(path, MOST_BYTES), str(path))
    if not isinstance(value, dict):
        actual = "nothing" if value is None else type(value).__name__
        raise UserError(f"{path}: expected a mapping such as `key: value`, found {actual}")
    return value


def first_comment(path: Path | Traversable) -> str:
    """Return the first line of a file without its `#` if the line is a comment. Otherwise, return an empty string."""
    line = read_text(path, MOST_BYTES).partition("\n")[0]
    return line[1:].strip() if line.startswith("#") else ""


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes strings which YAML 1.1 or 1.2 would read as another type."""


for pattern, _ in _CORE:
    _Dumper.add_implicit_resolver("tag:yaml.org,2002:core", re.compile(rf"^(?:{pattern.pattern})$"), None)


def to_yaml(value: Raw) -> str:
    """Convert a value to YAML. Keys keep their order, and short lists are written on one line."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=72)


def to_yaml_line(value: Any) -> str:
    """Convert a value to one line of YAML, as it would follow `key:`. A string is returned without quotes."""
    if isinstance(value, str):
        return value
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10_000)
    return text.removesuffix("\n...\n").strip()
