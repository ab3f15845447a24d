"""What a person sees while a study runs: one bar for all its runs, and a line for each that ends."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from archlab.config.text import visible
from archlab.study import pool
from archlab.study.runs import Run


class Board:
    """Follows one phase of a study after another."""

    def __init__(self) -> None:
        columns = (
            BarColumn(30),
            TextColumn("{task.percentage:3.0f}%  {task.description}"),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True, highlight=False, markup=False)
        self._progress = Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True)
        self._noted: set[str] = set()

    def __call__(self, runs: Sequence[Run]) -> "Phase":
        """Begin to follow these runs."""
        return Phase(self._progress, runs, self._noted)

    def __enter__(self) -> "Board":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Phase:
    """The runs of one phase; what many of them note is said of the first only."""

    def __init__(self, progress: Progress, runs: Sequence[Run], noted: set[str]) -> None:
        self._progress, self._noted = progress, noted
        self._done = dict.fromkeys((run.name for run in runs), 0.0)
        self._ended = 0
        self._elsewhere: set[str] = set()
        self._task = progress.add_task("", total=len(runs))

    def __call__(self, news: pool.Progress) -> None:
        """Move the bar; say how a run ended."""
        name, label = news.run.name, news.run.label
        self._done[name] = news.done
        if news.note and news.note not in self._noted:
            self._noted.add(news.note)
            self._say(f"note: {label}: {news.note}")
        if news.elsewhere and name not in self._elsewhere:
            self._elsewhere.add(name)
            self._say(f"note: {label}: another process trains it; it is waited for")
        if news.failed:
            self._say(f"note: {label}: failed: {news.failed}")
        if news.summary is not None:
            self._ended += 1
            score = news.summary.bits_per_byte
            result = f"diverged: {news.summary.why}" if score is None else f"{score:.4f} bits/byte"
            self._say(f"{self._ended:3}/{len(self._done)}  {label}: {result}")
        description = f"{self._ended} of {len(self._done)} runs"
        self._progress.update(self._task, completed=sum(self._done.values()), description=description)

    def _say(self, line: str) -> None:
        line = visible(line)
        if self._progress.disable:
            print(line, file=sys.stderr, flush=True)
        else:
            self._progress.console.print(line)
