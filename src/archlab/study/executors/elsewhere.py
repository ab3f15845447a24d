"""Runs as tasks that another program places on machines: handing them out, watching them, taking lost ones up again."""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from archlab.config.training import resolve_train
from archlab.interrupt import on_forced_exit, raise_if_interrupted
from archlab.study.executors.executor import OnProgress, RunProgress, settled
from archlab.study.runs import Run
from archlab.training.checkpoint import METRICS

ATTEMPTS = 4
"""How often a run is handed out whose worker is lost: its machine may be gone for once, or it may need too much."""

_LAST_LINES = 4096
"""Bytes at the end of a run's metrics in which its last step stands."""


_SHORT = 0.1
"""Seconds between two looks at the clock, where every run is waited for."""


class LostError(Exception):
    """A task ended without saying how: its machine is gone, or its process was killed."""


class BrokenError(Exception):
    """A task could not even begin, or has a bug; another try would end alike."""


TaskHandle = TypeVar("TaskHandle")


class Place(Protocol[TaskHandle]):
    """Takes runs, and trains each in its folder."""

    retry_after: float
    """Seconds before a run that another process trains is handed out again."""

    def start(self, runs: Sequence[Run]) -> list[TaskHandle]:
        """Hand out the runs; a task for each."""
        ...

    def ended(self, tasks: Sequence[TaskHandle], seconds: float) -> list[TaskHandle]:
        """Those that have ended; it waits so long for the first one."""
        ...

    def result(self, task: TaskHandle) -> list[RunProgress]:
        """What an ended task tells, last how its run ended; LostError or BrokenError where it does not."""
        ...

    def stop(self, tasks: Sequence[TaskHandle]) -> None:
        """End the tasks, each with a checkpoint, and wait until they have ended, where the place sees to it."""
        ...

    def kill(self, tasks: Sequence[TaskHandle]) -> None:
        """End them at once."""
        ...


def run_elsewhere(
    place: Place[TaskHandle], runs: Sequence[Run], study: Path, at_once: int | None, on_progress: OnProgress
) -> list[RunProgress]:
    """Train every run, `at_once` at a time or as many as the place takes; see `Executor.run_all`."""
    raise_if_interrupted()
    waiting = [(0.0, settled(run)) for run in runs]
    """Each with the time from which it may be handed out."""
    tasks, attempts, failed = dict[TaskHandle, Run](), Counter[str](), list[RunProgress]()
    watch = _Watch(study)
    try:
        while waiting or tasks:
            now = time.monotonic()
            ready, later = ([entry for entry in waiting if (entry[0] <= now) is is_due] for is_due in (True, False))
            room = len(ready) if at_once is None else at_once - len(tasks)
            if starting := [run for _, run in ready[:room]]:
                tasks.update(zip(place.start(starting), starting, strict=True))
                attempts.update(run.name for run in starting)
            waiting = [*ready[room:], *later]
            if not tasks:
                time.sleep(_SHORT)
                continue
            for task in place.ended(list(tasks), watch.pause(len(tasks))):
                run = tasks.pop(task)
                told = _told(place, task, run, attempts[run.name])
                for progress in told:
                    on_progress(progress)
                if told[-1].failed:
                    failed.append(told[-1])
                elif told[-1].busy:
                    attempts[run.name] -= 1
                    waiting.append((time.monotonic() + place.retry_after, run))
                elif told[-1].summary is None:
                    waiting.append((0.0, run))
            for moved in watch.look(tasks.values()):
                on_progress(moved)
        return failed
    finally:
        if tasks:
            with on_forced_exit(lambda: place.kill(list(tasks))):
                place.stop(list(tasks))


def _told(place: Place[TaskHandle], task: TaskHandle, run: Run, attempts: int) -> list[RunProgress]:
    """What an ended task tells; of a lost one a note that its run is taken up again, until that was done too often."""
    try:
        return place.result(task)
    except BrokenError as broken:
        return [RunProgress(run, 0.0, failed=str(broken))]
    except LostError as lost:
        if attempts < ATTEMPTS:
            return [RunProgress(run, 0.0, note=f"its worker was lost ({lost}); it goes on from its last checkpoint")]
        hint = "; often that is too little memory"
        return [RunProgress(run, 0.0, failed=f"its worker was lost {attempts} times ({lost}{hint})")]


class _Watch:
    """How far runs are, read from their folders."""

    def __init__(self, study: Path) -> None:
        self._study = study
        self._sizes: dict[str, int] = {}
        self._next = 0.0

    def look(self, runs: Collection[Run]) -> Iterator[RunProgress]:
        """Those that have moved, if the last look was long enough ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.pause(len(runs))
        yield from filter(None, map(self.moved, runs))

    def pause(self, n_tasks: int) -> float:
        """Seconds between two looks at so many folders, so that many runs do not keep a network's disk busy."""
        return max(0.5, n_tasks / 100)

    def moved(self, run: Run) -> RunProgress | None:
        """None where nothing was written since the last look."""
        file = run.folder(self._study) / METRICS
        try:
            size = file.stat().st_size
            if self._sizes.get(run.name) == size:
                return None
            self._sizes[run.name] = size
            with open(file, "rb") as opened:
                opened.seek(max(0, size - _LAST_LINES))
                steps = [_step(line) for line in opened.read().split(b"\n")]
        except OSError:  # it has not begun, or is being written anew
            return None
        done = [step for step in steps if step is not None]
        return RunProgress(run, max(done) / resolve_train(run.config).steps) if done else None


def _step(line: bytes) -> int | None:
    """The step of a whole line of metrics."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
