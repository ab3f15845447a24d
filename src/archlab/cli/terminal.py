"""Tables, JSON and long output for the terminal. They are readable with 80 columns, without colors and in a pipe."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from io import StringIO
from typing import Any, ParamSpec, TypeVar

from archlab.console import collected_stdout, console, write_exact
from archlab.report.text_table import print_columns

P = ParamSpec("P")
T = TypeVar("T")

_LESS_OPTIONS = "FRX"
"""Options for `less` if the user has not set LESS: quit if the text fits on the screen, show colors, keep the text on
the screen."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print rows under their headings to stdout. The columns named in `right` are right-aligned."""
    print_columns(console(), columns, rows, right=right)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def long_output(verb: Callable[P, T]) -> Callable[P, T]:
    """Decorate a command so that it shows its output in a pager if the output does not fit on the terminal.

    The pager is the value of the environment variable ARCHLAB_PAGER. If it is not set, the pager is the value of PAGER,
    or `less` if that is not set either. No pager is used if its name is empty, `cat`, or the name of a program that is
    not installed; nor for JSON, or if stdin or stdout is not a terminal.
    """

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with nullcontext() if kwargs.get("json") else _paged():
            return verb(*args, **kwargs)

    return run


@contextmanager
def _paged() -> Iterator[None]:
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
        yield
        return
    collected = StringIO()
    try:
        with collected_stdout() as collected:
            yield
    except BaseException:
        write_exact(collected.getvalue())
        raise
    text, pager = collected.getvalue(), _pager()
    if pager and text.count("\n") >= shutil.get_terminal_size().lines:
        _show_in(pager, text)
    else:
        write_exact(text)


def _pager() -> list[str]:
    command = os.environ.get("ARCHLAB_PAGER", os.environ.get("PAGER", "less"))
    try:
        words = shlex.split(command)
    except ValueError:  # a quotation mark is not closed
        return []
    is_usable = words and words[0] != "cat" and shutil.which(words[0]) and os.environ.get("TERM") != "dumb"
    return words if is_usable else []


def _show_in(pager: Sequence[str], text: str) -> None:
    with subprocess.Popen(pager, stdin=subprocess.PIPE, env={"LESS": _LESS_OPTIONS, **os.environ}) as process:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
        try:
            process.communicate(text.encode(sys.stdout.encoding or "utf-8", "replace"))
        finally:
            signal.signal(signal.SIGINT, before)
