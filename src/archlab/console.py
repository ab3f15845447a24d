"""Streams and consoles that print control characters as visible text. A name that is read from a file can therefore not
control the terminal."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO, Any, NoReturn, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from archlab.config.core.text import visible


class _VisibleStream:
    """Stream that writes control characters as visible text."""

    def __init__(self, stream: TextIO) -> None:
        self.exact = stream
        """Wrapped stream, which writes text unchanged."""

    def write(self, text: str) -> int:
        """Write the text after replacing control characters (see `visible`)."""
        return self.exact.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


@contextmanager
def visible_stdout() -> Iterator[None]:
    """Within the block, text printed to stdout shows control characters as visible text. `write_exact` is not
    affected."""
    with redirect_stdout(cast(TextIO, _VisibleStream(sys.stdout))):
        yield


class _TerminalText(io.StringIO):
    """Buffer that reports that it is a terminal, so that Rich writes escape sequences for styles into it."""

    def isatty(self) -> bool:
        return True


@contextmanager
def collected_stdout() -> Iterator[io.StringIO]:
    """Within the block, collect the output on stdout instead of printing it. Styles are kept, as for a terminal."""
    text = _TerminalText()
    with redirect_stdout(cast(TextIO, _VisibleStream(text))):
        yield text


def write_exact(text: str) -> None:
    """Write text to stdout unchanged. The caller must have passed it through `visible`."""
    _exact(sys.stdout).write(text)


def print_exact(text: str) -> None:
    """Print text that a model has generated, without adding a newline.

    In a terminal, control characters are shown as visible text. In a file or a pipe, the text is unchanged.
    """
    stream = sys.stdout if sys.stdout.isatty() else _exact(sys.stdout)
    stream.write(text)
    stream.flush()


def _exact(stream: IO[str]) -> IO[str]:
    return stream.exact if isinstance(stream, _VisibleStream) else stream


class _Console(Console):
    """Rich console that passes the printed text through `visible`. Escape sequences that Rich adds are kept."""

    @Console.file.getter
    def file(self) -> IO[str]:
        return _exact(super().file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as Rich does, then replace control characters (see `visible`)."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError again. By default, Rich would end the command with exit code 1."""
        raise


def console(*, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return a console that interprets no markup and adds no colors. It writes to stdout, unless `stderr` or `file`
    says otherwise. `width` is the number of columns; by default, it is that of the terminal."""
    # A kernel of Jupyter sets FORCE_COLOR, which must not add escape sequences to text in memory or in a file.
    is_terminal = None if file is None else False
    return _Console(
        stderr=stderr, file=file, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False,
        force_terminal=is_terminal,
    )  # fmt: skip
