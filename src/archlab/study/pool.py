"""Running independent trainings side by side, in processes with one thread each."""

import multiprocessing as mp
import os
import queue
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archlab.errors import UserError
from archlab.study.runs import Run
from archlab.train.loop import train
from archlab.train.progress import Beat, Watcher
from archlab.train.run_folder import RunSummary

SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameters up to which several one-thread processes train more tokens per second than one process with all threads
(measured at 1.3M: benchmarks/side_by_side.py)."""


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

    UserError from a run is raised here once the others have stopped, each with a checkpoint; so is KeyboardInterrupt.
    """
    context = mp.get_context("spawn")
    todo: Any = context.Queue()
    told: Any = context.Queue()
    for run in runs:
        todo.put(run)
    processes = [
        context.Process(target=_work, args=(todo, told, study, os.getpid()), daemon=True)
        for _ in range(min(workers, len(runs)))
    ]
    try:
        for process in processes:
            todo.put(None)
            process.start()
        ended = 0
        while ended < len(runs):
            message = _next(told, processes)
            if isinstance(message, UserError):
                raise message
            tell(message)
            ended += message.summary is not None
    finally:
        _stop(processes)


def _next(told: Any, processes: Sequence[Any]) -> Any:
    """The next message; UserError when a worker died without a word."""
    while True:
        try:
            return told.get(timeout=1.0)
        except queue.Empty:
            dead = [p.exitcode for p in processes if p.exitcode not in (None, 0)]
            if dead:
                raise UserError(
                    f"a worker process died (exit code {dead[0]}; -9 is often too little memory); "
                    "finished runs are kept: run again, perhaps with fewer --workers"
                ) from None


def _stop(processes: Sequence[Any]) -> None:
    """Ask those still at work to end (they write a checkpoint), and wait."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        if process.pid is not None:
            process.join()


class _Teller(Watcher):
    """Sends a run's progress to the parent, and ends the run when the parent is gone."""

    def __init__(self, run: Run, told: Any, parent: int) -> None:
        self._run, self._told, self._parent = run, told, parent

    def beat(self, beat: Beat) -> None:
        """Tell how far the run is."""
        if os.getppid() != self._parent:
            os.kill(os.getpid(), signal.SIGTERM)
        self._told.put(Progress(self._run, beat.step / beat.steps, None))


def _work(todo: Any, told: Any, study: Path, parent: int) -> None:
    """A worker's life: runs from the queue until it is empty. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while (run := todo.get()) is not None:
            torch.set_num_threads(run.threads)
            summary = train(run.config, run.folder(study), _Teller(run, told, parent))
            told.put(Progress(run, 1.0, summary))
    except UserError as error:
        told.put(error)
    except KeyboardInterrupt:
        sys.exit(0)
