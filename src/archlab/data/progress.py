"""Progress of turning text into tokens, shown to a person."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from archlab.pricing.units import decimal
from archlab.progress import Bar

Seen: TypeAlias = Callable[[int], None]
"""Called with the bytes of each piece of text that has become tokens."""

Progress: TypeAlias = Callable[[int], AbstractContextManager[Seen]]
"""Called once, with about how many bytes there will be."""


class _Tokenising:
    """Moves a bar as text becomes tokens."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar, self._total, self._start, self._done = bar, total, time.monotonic(), 0
        bar.begin("tokenising")

    def __call__(self, n_bytes: int) -> None:
        self._done += n_bytes
        share = min(self._done / self._total, 1.0)
        self._bar.update(share, f"{share:.0%}", str(self))

    def __str__(self) -> str:
        took = max(time.monotonic() - self._start, 1e-9)
        return f"{decimal(self._done)} at {decimal(self._done / took)}/s"


@contextmanager
def in_terminal(total: int) -> Iterator[Seen]:
    """Show a bar while it lasts; nothing outside a terminal."""
    with Bar(seconds_between_lines=None) as bar:
        yield _Tokenising(bar, total)


@contextmanager
def shown(total: int) -> Iterator[Seen]:
    """Show how much is done and how fast, and at the end how much it was."""
    with Bar() as bar:
        yield (tokenised := _Tokenising(bar, total))
    bar.print(f"tokenised {tokenised}")
