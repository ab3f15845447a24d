"""Running independent trainings side by side, in processes of their own."""

import multiprocessing as mp
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from archlab.errors import in_words
from archlab.interrupt import interrupts_blocked, on_forced_exit, raise_if_interrupted
from archlab.study.runs import Run
from archlab.train.loop import train
from archlab.train.progress import Beat, Watcher
from archlab.train.run_folder import BusyError, RunSummary

SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameters up to which several one-thread processes train more tokens per second than one process with
all threads (measured at 1.3M: benchmarks/side_by_side.py)."""

Line: TypeAlias = Any
"""One end of a pipe between the study and a worker; its class is another on every system."""


_PAUSE = 1.0
"""Seconds before a run that another process trains is tried again."""


@dataclass(frozen=True)
class Progress:
    """What happened to a run: it went on, has something to note, ended, failed, or is another process's."""

    run: Run
    done: float
    """Share of its steps."""
    summary: RunSummary | None = None
    """Set when it has ended."""
    failed: str | None = None
    """Why it ended without a summary."""
    elsewhere: bool = False
    """Another process trains it, so it is tried again later."""
    note: str | None = None
    """Something to know about it."""


@dataclass
class _Worker:
    process: BaseProcess
    run: Run | None = None
    """What it was given and has not brought to an end; None when it has nothing to do."""


def run_all(runs: Sequence[Run], study: Path, workers: int, tell: Callable[[Progress], None]) -> list[Progress]:
    """Train every run in its folder below `study`; finished ones are only read. The runs that failed.

    A run that fails, or whose worker dies, ends no other; one that another process trains is waited for.
    KeyboardInterrupt is raised here once all have stopped, each with a checkpoint.
    """
    raise_if_interrupted()
    waiting, failed = deque(runs), list[Progress]()
    crew: dict[Line, _Worker] = {}
    try:
        while waiting or any(worker.run for worker in crew.values()):
            while waiting and len(crew) < workers:
                line, worker = _hire(study)
                crew[line] = worker
                _give(line, worker, waiting)
            for line in wait(list(crew)):
                news = _hear(line, crew)
                if news is None:
                    continue
                tell(news)
                if news.failed:
                    failed.append(news)
                if news.elsewhere:
                    waiting.append(news.run)
                if line in crew and (news.failed or news.elsewhere or news.summary):
                    _give(line, crew[line], waiting)
        return failed
    finally:
        _stop(crew)


def _hire(study: Path) -> tuple[Line, _Worker]:
    """A worker and the line to it; each has its own, so that one that is killed harms no other."""
    context = mp.get_context("spawn")
    ours, theirs = cast(tuple[Line, Line], context.Pipe())
    process = context.Process(target=_serve, args=(theirs, study), daemon=True)
    with interrupts_blocked():
        process.start()
    theirs.close()
    return ours, _Worker(process)


def _give(line: Line, worker: _Worker, waiting: deque[Run]) -> None:
    """The next run, if there is one. A worker that is dead cannot take it, which `_hear` finds out."""
    worker.run = waiting.popleft() if waiting else None
    if worker.run:
        with suppress(OSError):
            line.send(worker.run)


def _hear(line: Line, crew: dict[Line, _Worker]) -> Progress | None:
    """The next message of a worker. One that died leaves the crew; then that its run failed, or None if it had none."""
    try:
        return line.recv()
    except (EOFError, OSError):
        worker = crew.pop(line)
        worker.process.join()
        code = worker.process.exitcode
        hint = "; often that is too little memory: try fewer --workers" if code == -signal.SIGKILL else ""
        return worker.run and Progress(worker.run, 0.0, failed=f"its worker process died (exit code {code}{hint})")


def _stop(crew: dict[Line, _Worker]) -> None:
    """Ask those still at work to end (they write a checkpoint), and wait; a second Ctrl-C ends them at once."""

    def kill() -> None:
        for worker in crew.values():
            worker.process.kill()

    with on_forced_exit(kill):
        for line, worker in crew.items():
            line.close()
            worker.process.terminate()
        for worker in crew.values():
            worker.process.join()


class _Teller(Watcher):
    """Sends a run's progress to the parent, and ends the run when there is nobody to hear it."""

    def __init__(self, run: Run, line: Line) -> None:
        self._run, self._line = run, line

    def note(self, text: str) -> None:
        """Tell it; a run notes only before its first step."""
        self._send(Progress(self._run, 0.0, note=text))

    def beat(self, beat: Beat) -> None:
        """Tell how far the run is."""
        self._send(Progress(self._run, beat.step / beat.steps))

    def _send(self, news: Progress) -> None:
        try:
            self._line.send(news)
        except OSError:
            signal.raise_signal(signal.SIGTERM)


def _serve(line: Line, study: Path) -> None:
    """A worker's life: one run after the other, until the line is closed."""
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        while True:
            line.send(_outcome(line.recv(), line, study))


def _outcome(run: Run, line: Line, study: Path) -> Progress:
    """How a run ended, whatever happened to it."""
    torch.set_num_threads(run.threads)
    try:
        return Progress(run, 1.0, train(run.config, run.folder(study), _Teller(run, line), run.corpus))
    except BusyError:
        time.sleep(_PAUSE)
        return Progress(run, 0.0, elsewhere=True)
    except Exception as error:
        return Progress(run, 0.0, failed=_why(error))


def _why(error: Exception) -> str:
    """In words; of a bug, whose traceback is wanted too, its name."""
    if words := in_words(error):
        return words
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
