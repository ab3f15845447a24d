"""Train runs on this machine in parallel processes. On a machine with GPUs, each process uses one GPU."""

import multiprocessing as mp
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from archlab.interrupt import on_forced_exit, raise_if_interrupted
from archlab.machine import cores
from archlab.study.executors.executor import OnProgress, RunProgress, train_run
from archlab.study.runs import Run
from archlab.training.callback import Callback, StepMetrics
from archlab.training.device import choose_device
from archlab.workers import starting_workers

Connection: TypeAlias = Any
"""One end of a pipe between the main process and a worker. Its class depends on the operating system."""

_RETRY_AFTER = 1.0
"""Seconds to wait before a run is tried again, if another process was training it."""


@dataclass
class _Worker:
    process: BaseProcess
    run: Run | None = None
    """Run that the worker is training; None if the worker is idle."""
    gpu: str | None = None
    """GPU that the worker sees; None if runs train on the CPU."""


@dataclass(frozen=True)
class Local:
    """Executor on this machine. `workers` is the number of runs that train at the same time; the default is
    `default_workers`."""

    workers: int | None = None

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        if not runs:
            return []
        gpus = visible_gpus() if choose_device(runs[0].config.train).type == "cuda" else []
        n_workers = self.workers or default_workers(runs[0].threads, gpus)
        return _run_all(runs, study, n_workers, gpus, on_progress)


def default_workers(threads: int, gpus: Sequence[str]) -> int:
    """Return the default number of workers: one per GPU or, without GPUs, the number of cores divided by `threads`."""
    return len(gpus) or max(1, cores() // threads)


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def _run_all(
    runs: Sequence[Run], study: Path, n_workers: int, gpus: Sequence[str], on_progress: OnProgress
) -> list[RunProgress]:
    raise_if_interrupted()
    waiting, failed = deque(runs), list[RunProgress]()
    workers: dict[Connection, _Worker] = {}
    try:
        while waiting or any(worker.run for worker in workers.values()):
            while waiting and len(workers) < n_workers:
                connection, worker = _start_worker(study, _least_used(gpus, workers.values()))
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


def _least_used(gpus: Sequence[str], workers: Iterable[_Worker]) -> str | None:
    used = Counter(worker.gpu for worker in workers)
    return min(gpus, key=lambda gpu: used[gpu], default=None)


def _start_worker(study: Path, gpu: str | None) -> tuple[Connection, _Worker]:
    """Start a worker, and return the connection to the worker and the worker itself. Each worker has its own pipe, so
    killing one worker does not affect the others."""
    context = mp.get_context("spawn")
    our_end, worker_end = cast(tuple[Connection, Connection], context.Pipe())
    process = context.Process(target=_worker_main, args=(worker_end, study, gpu), daemon=True)
    with starting_workers():
        process.start()
    worker_end.close()
    return our_end, _Worker(process, gpu=gpu)


def _assign_next(connection: Connection, worker: _Worker, waiting: deque[Run]) -> None:
    """Send the next waiting run, if there is one, to a worker. If the worker is dead, `_receive` finds out later."""
    worker.run = waiting.popleft() if waiting else None
    if worker.run:
        with suppress(OSError):
            connection.send(worker.run)


def _receive(connection: Connection, workers: dict[Connection, _Worker]) -> RunProgress | None:
    """Return the next message of a worker.

    If the worker is dead, remove it. Return a failure of its run, or None if it had no run.
    """
    try:
        return connection.recv()
    except (EOFError, OSError):
        worker = workers.pop(connection)
        worker.process.join()
        code = worker.process.exitcode
        hint = "; a common reason is too little memory: try fewer --workers" if code == -signal.SIGKILL else ""
        why = f"its worker process died (exit code {code}{hint})"
        return worker.run and RunProgress(worker.run, 0.0, failed=why)


def _stop_all(workers: dict[Connection, _Worker]) -> None:
    """Ask all workers to save a checkpoint and stop, and wait for them. A second Ctrl-C ends the workers
    immediately."""

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
    """Callback that sends a run's progress to the parent process. If the parent process is gone, the callback ends the
    run."""

    def __init__(self, run: Run, connection: Connection) -> None:
        self._run, self._connection = run, connection

    def on_note(self, text: str) -> None:
        self._send(RunProgress(self._run, 0.0, note=text))

    def on_step(self, metrics: StepMetrics) -> None:
        self._send(RunProgress(self._run, metrics.step / metrics.steps))

    def _send(self, progress: RunProgress) -> None:
        try:
            self._connection.send(progress)
        except OSError:
            signal.raise_signal(signal.SIGTERM)


def _worker_main(connection: Connection, study: Path, gpu: str | None) -> None:
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # this process has not used a GPU yet
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        while True:
            run = connection.recv()
            ended = train_run(run, study, _SendProgress(run, connection))
            if ended.busy:
                time.sleep(_RETRY_AFTER)
            connection.send(ended)
