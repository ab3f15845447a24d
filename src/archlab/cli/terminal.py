"""Plain tables on the terminal: as wide as it is, readable in 80 columns, in a pipe and without colours."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import IO, Any, NoReturn, TextIO, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from archlab.config.text import visible
from archlab.report.columns import fitted

_UNBOUNDED = 10_000
"""Columns that no table reaches."""


_FEW = 4
"""Columns that stay together however narrow the terminal is."""


class _VisibleStream:
    """A stream on which names and texts from files cannot command the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.exact = stream
        """It writes text as it is."""

    def write(self, text: str) -> int:
        """Write it as `visible` shows it."""
        return self.exact.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


@contextmanager
def visible_stdout() -> Iterator[None]:
    """Within the block, whatever is printed on stdout is written as `visible` shows it, but for `print_exact`."""
    with redirect_stdout(cast(TextIO, _VisibleStream(sys.stdout))):
        yield


def print_exact(text: str) -> None:
    """Print a model's own text without a line's end: byte for byte into a file or pipe, visible on a terminal."""
    stream = sys.stdout if sys.stdout.isatty() else _exact(sys.stdout)
    stream.write(text)
    stream.flush()


def _exact(stream: IO[str]) -> IO[str]:
    return stream.exact if isinstance(stream, _VisibleStream) else stream


class _Console(Console):
    """Rich's console, whose own escape sequences are no part of a text. We decide what happens when the reader of a
    pipe leaves."""

    @Console.file.getter
    def file(self) -> IO[str]:
        """The stream that writes text as it is."""
        return _exact(super().file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as Rich does, with the text as `visible` shows it."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error, as without Rich; Rich would end the command with exit code 1."""
        raise


def console(*, stderr: bool = False) -> Console:
    """A console that prints text unchanged: it reads no markup and adds no colours."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def print_note(text: str) -> None:
    """Print something that the user should know on stderr, in lines as wide as the terminal."""
    console(stderr=True).print(f"note: {visible(text)}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Rows under their headings; the columns named in `right` are numbers. Where the terminal is not wide enough, some
    columns first and then the others, each time beside the first one."""
    out, rows = console(), [*rows]
    heading, *cells = fitted([columns, *([str(cell) for cell in row] for row in rows)], out.width - 2 * len(columns))
    if len(columns) > _FEW and any("\n" in row[0] for row in cells):
        half = len(columns) // 2 + 1
        for part in (slice(1, half), slice(half, None)):
            print_table((columns[0], *columns[part]), [(row[0], *row[part]) for row in rows], right=right)
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name, title in zip(columns, heading, strict=True):
        table.add_column(title, justify="right" if name in right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    show_table(out, table)


def show_table(out: Console, table: Table) -> None:
    """Print a table whose lines are broken already; where it is still too wide, the terminal breaks its lines."""
    out.width = max(out.width, out.measure(table, options=out.options.update(max_width=_UNBOUNDED)).maximum)
    out.print(table)


def print_json(value: Any) -> None:
    """For scripts: indented JSON on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
