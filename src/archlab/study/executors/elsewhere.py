"""Train runs as tasks on a system that chooses the machines, such as Ray or Slurm. Tasks are submitted and watched. A
lost task is submitted again."""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from archlab.config.training import resolve_train
from archlab.interrupt import on_forced_exit, raise_if_interrupted
from archlab.study.executors.executor import OnProgress, RunProgress, with_resolved_device
from archlab.study.runs import Run
from archlab.training.run_files import METRICS

ATTEMPTS = 4
"""Largest number of attempts to train a run whose worker is lost. A machine may fail once, but a run that needs too
much memory fails every time."""

_LAST_LINES = 4096
"""Number of bytes to read from the end of a run's metrics file. This is enough to contain the last step."""


_SHORT = 0.1
"""Seconds between two checks while all remaining runs wait to be submitted again."""


class LostError(Exception):
    """A task ended without a result, because its machine is gone or its process was killed."""


class BrokenError(Exception):
    """A task could not start, or it raised an unexpected error. Another attempt would fail in the same way."""


TaskHandle = TypeVar("TaskHandle")


class Place(Protocol[TaskHandle]):
    """A system that runs tasks, such as a Ray cluster. Each task trains one run and saves it in the run's folder."""

    retry_after: float
    """Seconds to wait before a run is submitted again, if it was refused because another process was training it."""

    def start(self, runs: Sequence[Run]) -> list[TaskHandle]:
        """Submit the runs, and return their tasks in the same order."""
        ...

    def ended(self, tasks: Sequence[TaskHandle], seconds: float) -> list[TaskHandle]:
        """Wait until a task ends, but at most `seconds`. Return all tasks that have ended."""
        ...

    def result(self, task: TaskHandle) -> list[RunProgress]:
        """Return the messages of an ended task. The last message tells how the run ended.

        Raise LostError or BrokenError if the task has no result.
        """
        ...

    def stop(self, tasks: Sequence[TaskHandle]) -> None:
        """Ask the tasks to save a checkpoint and stop. Wait until they have stopped, if the system supports waiting."""
        ...

    def kill(self, tasks: Sequence[TaskHandle]) -> None:
        """End the tasks immediately, without checkpoints."""
        ...


def run_elsewhere(
    place: Place[TaskHandle], runs: Sequence[Run], study: Path, at_once: int | None, on_progress: OnProgress
) -> list[RunProgress]:
    """Train every run, and return the runs that failed. At most `at_once` runs train at the same time; None sets no
    limit.

    Interrupts and failures are handled as described in `Executor.run_all`.
    """
    raise_if_interrupted()
    waiting = [(0.0, with_resolved_device(run)) for run in runs]
    """Runs to submit, each with the earliest time at which it may be submitted."""
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
                messages = _messages_of(place, task, run, attempts[run.name])
                for progress in messages:
                    on_progress(progress)
                if messages[-1].failed:
                    failed.append(messages[-1])
                elif messages[-1].busy:
                    attempts[run.name] -= 1
                    waiting.append((time.monotonic() + place.retry_after, run))
                elif messages[-1].summary is None:
                    waiting.append((0.0, run))
            for progress in watch.look(tasks.values()):
                on_progress(progress)
        return failed
    finally:
        if tasks:
            with on_forced_exit(lambda: place.kill(list(tasks))):
                place.stop(list(tasks))


def _messages_of(place: Place[TaskHandle], task: TaskHandle, run: Run, attempts: int) -> list[RunProgress]:
    """Return the messages of an ended task. If the task was lost, return a note that its run will be submitted again
    or, after `ATTEMPTS` attempts, a failure."""
    try:
        return place.result(task)
    except BrokenError as broken:
        return [RunProgress(run, 0.0, failed=str(broken))]
    except LostError as lost:
        if attempts < ATTEMPTS:
            return [
                RunProgress(run, 0.0, note=f"its worker was lost ({lost}); the run continues from its last checkpoint")
            ]
        hint = "; a common reason is too little memory"
        return [RunProgress(run, 0.0, failed=f"its worker was lost {attempts} times ({lost}{hint})")]


class _Watch:
    """Progress of runs, read from their folders."""

    def __init__(self, study: Path) -> None:
        self._study = study
        self._sizes: dict[str, int] = {}
        self._next = 0.0

    def look(self, runs: Collection[Run]) -> Iterator[RunProgress]:
        """Yield the progress of each run that has finished steps since the last reading. Yield nothing if the last
        reading was less than `pause` seconds ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.pause(len(runs))
        yield from filter(None, map(self.progress_of, runs))

    def pause(self, n_tasks: int) -> float:
        """Return the seconds between two readings. They increase with the number of runs, to limit the load on a
        network disk."""
        return max(0.5, n_tasks / 100)

    def progress_of(self, run: Run) -> RunProgress | None:
        """Return the progress of a run, or None if the run has written nothing since the last reading."""
        file = run.folder(self._study) / METRICS
        try:
            size = file.stat().st_size
            if self._sizes.get(run.name) == size:
                return None
            self._sizes[run.name] = size
            with open(file, "rb") as opened:
                opened.seek(max(0, size - _LAST_LINES))
                steps = [_step(line) for line in opened.read().split(b"\n")]
        except OSError:  # it has not begun, or its log is being rewritten
            return None
        done = [step for step in steps if step is not None]
        return RunProgress(run, max(done) / resolve_train(run.config).steps) if done else None


def _step(line: bytes) -> int | None:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
