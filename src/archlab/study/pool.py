"""Running independent trainings side by side, in processes of their own."""

import multiprocessing as mp
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from archlab.errors import user_message
from archlab.interrupt import interrupts_blocked, on_forced_exit, raise_if_interrupted
from archlab.study.outcomes.weights import measure
from archlab.study.runs import Run
from archlab.train.loop import train
from archlab.train.progress import Callback, StepMetrics
from archlab.train.run_folder import BusyError
from archlab.train.summary import RunSummary

SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameters up to which several one-thread processes train more tokens per second than one process with
all threads (measured at 1.3M: benchmarks/side_by_side.py)."""

Connection: TypeAlias = Any
"""One end of a pipe between the study and a worker; its class differs from system to system."""

_RETRY_AFTER = 1.0
"""Seconds before a run that another process trains is tried again."""


@dataclass(frozen=True)
class RunProgress:
    """What happened to a run: it made a step, has a note, ended, failed, or is trained by another process."""

    run: Run
    share_done: float
    """Share of its steps that are done."""
    summary: RunSummary | None = None
    """Set when it has ended."""
    failed: str | None = None
    """Why it ended without a summary."""
    busy: bool = False
    """Another process trains it, so it is tried again later."""
    note: str | None = None
    """Something that the user should know about it."""


@dataclass
class _Worker:
    process: BaseProcess
    run: Run | None = None
    """The run it was given and has not ended; None when it has nothing to do."""


def run_all(
    runs: Sequence[Run], study: Path, n_workers: int, on_progress: Callable[[RunProgress], None]
) -> list[RunProgress]:
    """Train every run in its folder below `study`; finished ones are only read. Returns the runs that failed.

    A run that fails, or whose worker dies, ends no other run. A run that another process trains is waited for.
    KeyboardInterrupt is raised here once all workers have stopped, each with a checkpoint.
    """
    raise_if_interrupted()
    waiting, failed = deque(runs), list[RunProgress]()
    workers: dict[Connection, _Worker] = {}
    try:
        while waiting or any(worker.run for worker in workers.values()):
            while waiting and len(workers) < n_workers:
                connection, worker = _start_worker(study)
                workers[connection] = worker
                _assign_next(connection, worker, waiting)
            for connection in wait(list(workers)):
                progress = _receive(connection, workers)
                if progress is None:
                    continue
                on_progress(progress)
                if progress.failed:
                    failed.append(progress)
                if progress.busy:
                    waiting.append(progress.run)
                if connection in workers and (progress.failed or progress.busy or progress.summary):
                    _assign_next(connection, workers[connection], waiting)
        return failed
    finally:
        _stop_all(workers)


def _start_worker(study: Path) -> tuple[Connection, _Worker]:
    """A worker and the connection to it. Each has a pipe of its own, so that killing one harms no other."""
    context = mp.get_context("spawn")
    ours, theirs = cast(tuple[Connection, Connection], context.Pipe())
    process = context.Process(target=_worker_main, args=(theirs, study), daemon=True)
    resource_tracker.ensure_running()  # else the first worker would start it, which unblocks Ctrl-C
    with interrupts_blocked():
        process.start()
    theirs.close()
    return ours, _Worker(process)


def _assign_next(connection: Connection, worker: _Worker, waiting: deque[Run]) -> None:
    """Send the next run, if there is one. That a worker is dead and cannot take it is found by `_receive`."""
    worker.run = waiting.popleft() if waiting else None
    if worker.run:
        with suppress(OSError):
            connection.send(worker.run)


def _receive(connection: Connection, workers: dict[Connection, _Worker]) -> RunProgress | None:
    """The next message of a worker.

    A worker that died is removed; then the message says that its run failed, or is None if it had no run.
    """
    try:
        return connection.recv()
    except (EOFError, OSError):
        worker = workers.pop(connection)
        worker.process.join()
        code = worker.process.exitcode
        hint = "; often that is too little memory: try fewer --workers" if code == -signal.SIGKILL else ""
        why = f"its worker process died (exit code {code}{hint})"
        return worker.run and RunProgress(worker.run, 0.0, failed=why)


def _stop_all(workers: dict[Connection, _Worker]) -> None:
    """Ask those still at work to end (they write a checkpoint), and wait; a second Ctrl-C ends them at once."""

    def kill() -> None:
        for worker in workers.values():
            worker.process.kill()

    with on_forced_exit(kill):
        for connection, worker in workers.items():
            connection.close()
            worker.process.terminate()
        for worker in workers.values():
            worker.process.join()


class _SendProgress(Callback):
    """Sends a run's progress to the parent process, and ends the run when the parent is gone."""

    def __init__(self, run: Run, connection: Connection) -> None:
        self._run, self._connection = run, connection

    def on_note(self, text: str) -> None:
        """Send it; notes come only before the first step."""
        self._send(RunProgress(self._run, 0.0, note=text))

    def on_step(self, metrics: StepMetrics) -> None:
        """Send how far the run is."""
        self._send(RunProgress(self._run, metrics.step / metrics.steps))

    def _send(self, progress: RunProgress) -> None:
        try:
            self._connection.send(progress)
        except OSError:
            signal.raise_signal(signal.SIGTERM)


def _worker_main(connection: Connection, study: Path) -> None:
    """What a worker process does: one run after the other, until the connection is closed."""
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        while True:
            connection.send(_train(connection.recv(), connection, study))


def _train(run: Run, connection: Connection, study: Path) -> RunProgress:
    """Train a run; how it ended, whatever happened to it."""
    torch.set_num_threads(run.threads)
    try:
        folder = run.folder(study)
        summary = train(run.config, folder, _SendProgress(run, connection), run.corpus)
        if summary.status == "finished":
            measure(run.measures, run.config, folder)
        return RunProgress(run, 1.0, summary)
    except BusyError:
        time.sleep(_RETRY_AFTER)
        return RunProgress(run, 0.0, busy=True)
    except Exception as error:
        return RunProgress(run, 0.0, failed=_why(error))


def _why(error: Exception) -> str:
    """What the user is told; for a bug its name, and its traceback is printed too."""
    if message := user_message(error):
        return message
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
