"""What a person sees while a model trains: one bar in a terminal, plain lines elsewhere."""

import sys
import time
from dataclasses import dataclass, replace
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from archlab.config.text import visible


def note(text: str) -> None:
    """Something to know, on a line of its own."""
    print(f"note: {visible(text)}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Beat:
    """The state after one step."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    mfu: float
    bits_per_byte: float | None
    """Of the evaluation after this step, if there was one."""

    def __str__(self) -> str:
        held_out = "" if self.bits_per_byte is None else f"  {self.bits_per_byte:.3f} bits/byte"
        speed = f"{self.tokens_per_second:,.0f} tok/s  MFU {self.mfu:.0%}"
        return f"loss {self.loss:.3f}{held_out}  {speed}"


class Watcher:
    """Told after every step; a context that lasts as long as the run. This one says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str) -> None:
        """Something to know about the run."""

    def goes_on(self, step: int) -> None:
        """The run was begun before, and goes on after this step."""

    def beat(self, beat: Beat) -> None:
        """One step is done."""


class _Terminal(Watcher):
    def note(self, text: str) -> None:
        """On a line of its own."""
        note(text)

    def goes_on(self, step: int) -> None:
        """A note."""
        note(f"going on after step {step}")


class Bar(_Terminal):
    """One line that stays in place."""

    def __init__(self) -> None:
        text = TextColumn("{task.completed}/{task.total}  {task.description}")
        self._progress = Progress(BarColumn(16), text, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._progress.add_task("", total=None)
        self._held_out: float | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def beat(self, beat: Beat) -> None:
        """Move the bar, keeping the last evaluation in view."""
        self._held_out = beat.bits_per_byte or self._held_out
        line = str(replace(beat, bits_per_byte=self._held_out))
        self._progress.update(self._task, total=beat.steps, completed=beat.step, description=line)


class Lines(_Terminal):
    """A line every few seconds, and for every evaluation."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        self._every, self._last = every_seconds, float("-inf")

    def beat(self, beat: Beat) -> None:
        """Print when it is time."""
        now = time.monotonic()
        if now - self._last >= self._every or beat.bits_per_byte is not None:
            self._last = now
            print(f"step {beat.step}/{beat.steps}  {beat}", file=sys.stderr, flush=True)


def watcher() -> Watcher:
    """A bar in a terminal, lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()
