"""What a person sees while text becomes tokens."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from archlab.progress import Bar

Seen: TypeAlias = Callable[[int], None]
"""Called with the bytes of each piece of text that has become tokens."""

Progress: TypeAlias = Callable[[int], AbstractContextManager[Seen]]
"""Called once, with about how many bytes there will be."""


@contextmanager
def unseen(_total: int) -> Iterator[Seen]:
    """Show nothing."""
    yield lambda _: None


@contextmanager
def shown(total: int) -> Iterator[Seen]:
    """Show how much is done and how fast, and at the end how much it was."""
    start, done = time.monotonic(), 0

    def speed() -> str:
        return f"{done / 1e6 / max(time.monotonic() - start, 1e-9):,.1f} MB/s"

    def see(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        share = min(done / total, 1.0) if total else 1.0
        bar.update(share, f"{share:.0%}", f"{done / 1e6:,.1f} MB at {speed()}")

    with Bar() as bar:
        bar.begin("tokenising")
        yield see
    bar.print(f"tokenised {done / 1e6:,.1f} MB at {speed()}")
