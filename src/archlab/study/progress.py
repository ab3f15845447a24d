"""What a person sees while a study runs: one bar for all its runs, and a line for each run that ends."""

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from archlab.config.text import visible
from archlab.cost.units import seconds
from archlab.study.executors.executor import RunProgress
from archlab.study.outcomes.timing import ROUNDS
from archlab.study.runs import Run


class StudyProgress:
    """Shows the progress of a study, phase by phase: tuning, then the comparison, then what is timed."""

    def __init__(self) -> None:
        columns = (
            BarColumn(30),
            TextColumn("{task.percentage:3.0f}%  {task.description}"),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True, highlight=False, markup=False)
        self._progress = Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True)
        self._noted: set[str] = set()

    def __call__(self, runs: Sequence[Run]) -> "PhaseProgress":
        """Begin the phase of these runs."""
        return PhaseProgress(self._progress, runs, self._noted)

    def timing(self, title: str) -> Callable[[int], None]:
        """Begin to time the outcome of that title."""
        said = f"timing, with nothing beside it: {title}"
        task = self._progress.add_task(said, total=ROUNDS)
        if self._progress.disable:
            print(visible(said), file=sys.stderr, flush=True)
        return lambda rounds: self._progress.update(task, completed=rounds)

    def __enter__(self) -> "StudyProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class PhaseProgress:
    """Shows the runs of one phase. A note that many of them have is printed for the first one only."""

    def __init__(self, bar: Progress, runs: Sequence[Run], noted: set[str]) -> None:
        self._bar, self._noted = bar, noted
        self._share_done = dict.fromkeys((run.name for run in runs), 0.0)
        self._ended, self._began = 0, time.monotonic()
        self._busy: set[str] = set()
        self._task = bar.add_task("", total=len(runs))

    def __call__(self, progress: RunProgress) -> None:
        """Move the bar; print how a run ended."""
        name, label = progress.run.name, progress.run.label
        if not progress.note:  # which says nothing of how far the run is
            self._share_done[name] = progress.share_done
        if progress.note and progress.note not in self._noted:
            self._noted.add(progress.note)
            self._print(f"note: {label}: {progress.note}")
        if progress.busy and name not in self._busy:
            self._busy.add(name)
            self._print(f"note: {label}: another process trains it; it is waited for")
        if progress.failed:
            self._print(f"note: {label}: failed: {progress.failed}")
        if progress.summary is not None:
            self._ended += 1
            summary = progress.summary
            result = summary.result if summary.status == "finished" else f"diverged: {summary.why}"
            left = self._left() if self._bar.disable else ""  # the bar has it too
            self._print(f"{self._ended:3}/{len(self._share_done)}  {label}: {result}{left}")
        description = f"{self._ended} of {len(self._share_done)} runs"
        self._bar.update(self._task, completed=sum(self._share_done.values()), description=description)

    def _left(self) -> str:
        """As long as the rest takes, if it goes on as so far; empty at the end."""
        done, took = sum(self._share_done.values()), time.monotonic() - self._began
        rest = len(self._share_done) - done
        return f"; about {seconds(took * rest / done)} left" if done and self._ended < len(self._share_done) else ""

    def _print(self, line: str) -> None:
        line = visible(line)
        if self._bar.disable:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(line)
