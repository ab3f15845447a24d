"""What a person sees while a model trains: one bar in a terminal, plain lines elsewhere."""

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from archlab.config.text import note
from archlab.train.evaluate import Score


@dataclass(frozen=True)
class StepMetrics:
    """The state of a run after one step."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    mfu: float
    score: Score | None
    """Of the evaluation after this step, if there was one."""

    def __str__(self) -> str:
        held_out = "" if self.score is None else f"  {self.score}"
        speed = f"{self.tokens_per_second:,.0f} tok/s  MFU {self.mfu:.0%}"
        return f"loss {self.loss:.3f}{held_out}  {speed}"


class Callback:
    """What a training calls while it goes on; a context that lasts as long as its steps. This one does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def on_note(self, text: str) -> None:
        """There is something that the user should know."""

    def on_resume(self, step: int) -> None:
        """The run was begun before; it goes on after this step."""

    def on_step(self, metrics: StepMetrics) -> None:
        """One step is done."""


class _Printing(Callback):
    """Where nobody reads any more, a closed pipe or terminal, the training goes on."""

    def on_note(self, text: str) -> None:
        """Print it."""
        with suppress(OSError):
            note(text)

    def on_resume(self, step: int) -> None:
        """Print a note."""
        self.on_note(f"going on after step {step}")


class ProgressBar(_Printing):
    """One line that stays in place."""

    def __init__(self) -> None:
        text = TextColumn("{task.completed}/{task.total}  {task.description}")
        self._progress = Progress(BarColumn(16), text, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._progress.add_task("", total=None)
        self._score: Score | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._progress.stop()

    def on_step(self, metrics: StepMetrics) -> None:
        """Move the bar; the last evaluation stays in view."""
        self._score = metrics.score or self._score
        line = str(replace(metrics, score=self._score))
        self._progress.update(self._task, total=metrics.steps, completed=metrics.step, description=line)


class ProgressLines(_Printing):
    """A line every few seconds, and one for every evaluation."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        self._every, self._last = every_seconds, float("-inf")

    def on_step(self, metrics: StepMetrics) -> None:
        """Print a line when it is time."""
        now = time.monotonic()
        if now - self._last >= self._every or metrics.score:
            self._last = now
            with suppress(OSError):
                print(f"step {metrics.step}/{metrics.steps}  {metrics}", file=sys.stderr, flush=True)


def progress_callback() -> Callback:
    """A bar in a terminal, lines elsewhere."""
    return ProgressBar() if sys.stderr.isatty() else ProgressLines()
