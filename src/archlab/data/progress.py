"""What a person sees while text becomes tokens: one bar in a terminal, a line every few seconds elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

Seen: TypeAlias = Callable[[int], None]
"""Called with the bytes of each piece of text that has become tokens."""

Progress: TypeAlias = Callable[[int], AbstractContextManager[Seen]]
"""Called once, with about how many bytes there will be."""

_EVERY = 10.0
"""Seconds between two lines."""


@contextmanager
def unseen(_total: int) -> Iterator[Seen]:
    """Nothing."""
    yield lambda _: None


@contextmanager
def shown(total: int) -> Iterator[Seen]:
    """How much is done, and how fast."""
    from rich import progress
    from rich.console import Console

    start = time.monotonic()
    done, last = 0, start
    in_terminal = sys.stderr.isatty()
    columns = progress.BarColumn(16), progress.TextColumn("{task.description}"), progress.TimeRemainingColumn()
    bar = progress.Progress(*columns, console=Console(stderr=True), disable=not in_terminal, transient=True)
    task = bar.add_task("", total=total)

    def line() -> str:
        return f"tokenised {done / 1e6:,.1f} MB at {done / 1e6 / max(time.monotonic() - start, 1e-9):,.1f} MB/s"

    def see(n_bytes: int) -> None:
        nonlocal done, last
        done += n_bytes
        bar.update(task, completed=min(done, total), description=line())
        if not in_terminal and time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            print(f"{min(done / total, 1):4.0%}  {line()}", file=sys.stderr, flush=True)

    with bar:
        yield see
    print(line(), file=sys.stderr, flush=True)
