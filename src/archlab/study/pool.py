"""Running independent trainings side by side, in processes of their own."""

import multiprocessing as mp
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from archlab.errors import UserError
from archlab.interrupt import deaf, heed
from archlab.study.runs import Run
from archlab.train.loop import train
from archlab.train.progress import Beat, Watcher
from archlab.train.run_folder import RunSummary

SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameters up to which several one-thread processes train more tokens per second than one process with
all threads (measured at 1.3M: benchmarks/side_by_side.py)."""

Line: TypeAlias = Any
"""One end of a pipe between the study and a worker; its class is another on every system."""


@dataclass(frozen=True)
class Progress:
    """What happened: a run went on, or ended."""

    run: Run
    done: float
    """Share of its steps."""
    summary: RunSummary | None
    """Set when it has ended."""


def run_all(runs: Sequence[Run], study: Path, workers: int, tell: Callable[[Progress], None]) -> None:
    """Train every run in its folder below `study`; finished ones are only read.

    UserError from a run is raised here once the others have stopped, each with a checkpoint; so is
    KeyboardInterrupt.
    """
    heed()
    waiting, ended = deque(runs), 0
    crew: dict[Line, BaseProcess] = {}
    try:
        for _ in range(min(workers, len(runs))):
            line, process = _hire(study)
            crew[line] = process
            _give(line, waiting)
        while ended < len(runs):
            for line in wait(list(crew)):
                news = _hear(line, crew[line])
                tell(news)
                if news.summary is not None:
                    ended += 1
                    _give(line, waiting)
    finally:
        _stop(crew)


def _hire(study: Path) -> tuple[Line, BaseProcess]:
    """A worker and the line to it; each has its own, so that one that is killed harms no other."""
    context = mp.get_context("spawn")
    ours, theirs = cast(tuple[Line, Line], context.Pipe())
    process = context.Process(target=_serve, args=(theirs, study), daemon=True)
    with deaf():
        process.start()
    theirs.close()
    return ours, process


def _give(line: Line, waiting: deque[Run]) -> None:
    """The next run, if there is one. A worker that is dead cannot take it, which `_hear` finds out."""
    if waiting:
        with suppress(OSError):
            line.send(waiting.popleft())


def _hear(line: Line, process: BaseProcess) -> Progress:
    """The next message of a worker; UserError when that is one, or when it died without a word."""
    try:
        message = line.recv()
    except (EOFError, OSError):
        process.join()
        raise UserError(
            f"a worker process died (exit code {process.exitcode}; -9 is often too little memory); "
            "finished runs are kept: run again, perhaps with fewer --workers"
        ) from None
    if isinstance(message, UserError):
        raise message
    return message


def _stop(crew: dict[Line, BaseProcess]) -> None:
    """Ask those still at work to end (they write a checkpoint), and wait."""
    for line, process in crew.items():
        line.close()
        process.terminate()
    for process in crew.values():
        process.join()


class _Teller(Watcher):
    """Sends a run's progress to the parent, and ends the run when there is nobody to hear it."""

    def __init__(self, run: Run, line: Line) -> None:
        self._run, self._line = run, line

    def beat(self, beat: Beat) -> None:
        """Tell how far the run is."""
        try:
            self._line.send(Progress(self._run, beat.step / beat.steps, None))
        except OSError:
            signal.raise_signal(signal.SIGTERM)


def _serve(line: Line, study: Path) -> None:
    """A worker's life: one run after the other, until the line is closed."""
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        while True:
            run = line.recv()
            torch.set_num_threads(run.threads)
            try:
                ended = train(run.config, run.folder(study), _Teller(run, line), run.corpus)
                line.send(Progress(run, 1.0, ended))
            except UserError as error:
                line.send(error)
            except OSError as error:
                line.send(UserError(f"{error.filename or run.label}: {error.strerror or error}"))
