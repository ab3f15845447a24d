"""Streams and consoles on which names and texts from files cannot command the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO, Any, NoReturn, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from archlab.config.core.text import visible


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
