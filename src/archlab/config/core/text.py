"""Types of text fields, and the display of text in terminals, web pages and images."""

import re
import shlex
import shutil
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from archlab.code import calls_to_user

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that are not displayed: control characters, characters that reverse the direction of text, and code points
that are not characters. Images cannot contain them.

Tab and newline are allowed.
"""

_NAMES = {"\x00": "null", "\t": "tab", "\n": "newline", "\x0c": "form feed", "\r": "carriage return", "\x1b": "escape"}
"""Names of control characters, because Unicode defines no names for them."""


def visible(text: str) -> str:
    r"""Return the text with each character that cannot be displayed replaced by its code point, such as `\u001b`."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def command_line(command: str, *files: str, options: Iterable[str] = ()) -> str:
    """Return a command of archlab as it is typed in a shell, with quotes around words that need them.

    `command` may have several words, as in `study run`. A file whose name begins with `-` is written as `./-name`,
    because the command would take it for an option.
    """
    names = (f"./{name}" if name.startswith("-") else name for name in files)
    return shlex.join(["archlab", *command.split(), *names, *options])


def in_notebook() -> bool:
    """Return whether the code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def print_to_stderr(text: str) -> None:
    """Print the text to stderr, with hidden characters replaced as in `visible`. In a terminal, wrap lines between
    words. In a notebook, print to stdout, because it shows stderr like an error.

    If the terminal or pipe is closed, do nothing.
    """
    text = visible(text)
    with suppress(OSError):
        if in_notebook():
            print(text, flush=True)
            return
        if sys.stderr.isatty():
            text = "\n".join(_wrapped(line, shutil.get_terminal_size().columns) for line in text.splitlines())
        print(text, file=sys.stderr, flush=True)


def exact(number: float) -> str:
    """Return a number as text for a message that tells the user what to write. It has as many digits as are needed to
    read the same number again, as in `10000` or `0.7071067811865476`."""
    short = f"{number:g}"
    return short if float(short) == number else str(number)


_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


def note(text: str) -> None:
    """Print a note for the user to stderr, with the prefix `note: `. Within `collected_notes`, add the note to the
    list instead."""
    if (notes := _collected.get()) is not None:
        notes.append(text)
    else:
        print_to_stderr(f"note: {text}")


@contextmanager
def collected_notes() -> Iterator[list[str]]:
    """Collect the notes of the `with` block in a list instead of printing them. If the block raises an error, print the
    notes."""
    before = _collected.set(notes := [])
    try:
        yield notes
    except BaseException:
        _collected.reset(before)
        for text in notes:
            note(text)
        raise
    _collected.reset(before)


def deprecated(name: str, instead: str) -> None:
    """Announce that the caller of a public function uses a deprecated part (docs/compatibility.md).

    A script gets a DeprecationWarning, and a command prints a note. `name` is the part, and `instead` says what to use.
    """
    text = f"{name} is deprecated; {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=calls_to_user() + 1)
    note(text)


note_once = cache(note)
"""Print a note only once per process, because a command may read the same file several times."""


def _wrapped(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _text(value: str) -> str:
    if match := _HIDDEN.search(value):
        raise ValueError(f"'{visible(value)}' has {_named(match[0])}, which cannot be shown; leave it out")
    return value


def _line(value: str) -> str:
    if match := re.search("[\n\t]", value):
        raise ValueError(f"{value!r} has {_named(match[0])}; write the text on one line")
    return _text(value)


def _file_name(value: str) -> str:
    _line(re.sub("[\udc80-\udcff]", "", value))
    return value


def _named(character: str) -> str:
    name = _NAMES.get(character) or unicodedata.name(character, "").lower()
    return f"the character U+{ord(character):04X}" + (f" ({name})" if name else "")


Text = Annotated[str, Field(min_length=1), AfterValidator(_text)]
"""Text of one or more lines, without characters that cannot be displayed."""

Line = Annotated[str, Field(min_length=1), AfterValidator(_line)]
"""One line of text, without characters that cannot be displayed."""

FileName = Annotated[str, AfterValidator(_file_name)]
"""Name of a file or preset. As usual in Python, bytes that are not valid UTF-8 are represented by surrogates (U+DC80 to
U+DCFF)."""

Shown = Annotated[str, BeforeValidator(lambda value: visible(value) if isinstance(value, str) else value)]
"""Text in which each character that cannot be displayed is replaced by its code point, as in `visible`."""
