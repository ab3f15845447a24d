"""Common parts of all executors: their interface, the function that trains one run, and the resources that a run
needs."""

import os
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from archlab.config.schema import Config
from archlab.errors import user_message
from archlab.files import real_path
from archlab.machine import cores
from archlab.pricing.params import parameters
from archlab.pricing.run_memory import host_memory
from archlab.pricing.units import binary, plural
from archlab.study.outcomes.final_weights import measure
from archlab.study.runs import Run
from archlab.training.callback import Callback
from archlab.training.code_digest import code_digest
from archlab.training.device import planned_device
from archlab.training.run_folder import BusyError
from archlab.training.summary import RunSummary
from archlab.training.train import train


@dataclass(frozen=True)
class RunProgress:
    """Message about a run: a finished step, a note, the summary, a failure, or that another process is training the
    run."""

    run: Run
    share_done: float
    """Fraction of the run's steps that are finished."""
    summary: RunSummary | None = None
    failed: str | None = None
    """Reason why the run failed; None if it did not fail."""
    busy: bool = False
    """Whether another process is training the run. The executor then tries the run again later."""
    note: str | None = None
    """Note for the user about the run."""


OnProgress = Callable[[RunProgress], None]


class Executor(Protocol):
    """A way to train runs. All results are saved in the study's folder, so a different executor can continue the study
    at any time."""

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        """Train every run in its own folder below `study`, and return the runs that failed. A finished run is not
        trained again.

        If a run fails or its worker dies, the other runs go on. If another process is training a run, wait for that
        process. After an interrupt, raise KeyboardInterrupt once all runs have stopped with a checkpoint. Jobs of a
        Slurm cluster may still be saving their checkpoints at that time.
        """
        ...


def train_run(run: Run, study: Path, callback: Callback) -> RunProgress:
    """Train a run in its folder below `study`, and measure the outcomes that need its final weights. Return a message
    with the summary, with the failure, or that another process is training the run."""
    torch.set_num_threads(run.threads)
    try:
        folder = run.folder(study)
        summary = train(run.trained(study), folder, callback, run.corpus)
        if summary.status == "finished":
            measure(run.measures, run.config, folder)
        return RunProgress(run, 1.0, summary)
    except BusyError:
        return RunProgress(run, 0.0, busy=True)
    except Exception as error:
        return RunProgress(run, 0.0, failed=_error_message(error))


@dataclass(frozen=True)
class Errand:
    """Callable that trains runs of a study. It can be pickled and sent to processes on other machines."""

    study: Path
    """Folder of the study, as a full path that is valid on all machines."""
    working_folder: Path
    """Folder in which the command was started. Relative paths of text files start from it."""
    code: str
    """Digest of archlab's code in the process that runs the study. A machine with different code refuses to train."""

    @classmethod
    def of(cls, study: Path) -> "Errand":
        """Return an errand for a study, with the current working folder and the digest of this process's code."""
        return cls(real_path(study), Path.cwd(), code_digest())

    def __call__(self, run: Run) -> list[RunProgress]:
        """Train a run. Return its notes, followed by its summary or failure."""
        if (reason := self._obstacle()) is not None:
            return [RunProgress(run, 0.0, failed=f"{socket.gethostname()}: {reason}")]
        notes = _Notes()
        ended = train_run(run, self.study, notes)
        return [*(RunProgress(run, 0.0, note=text) for text in notes.texts), ended]

    def _obstacle(self) -> str | None:
        """Return the reason why this machine cannot train runs of the study. Return None if it can, and enter the
        working folder if this machine has it."""
        if not self.study.is_dir():
            return f"could not find the folder {self.study}; put the study in a folder that all machines share"
        if code_digest() != self.code:
            return (
                "has another version of archlab's code than the machine that runs the study; install the same version"
            )
        if self.working_folder.is_dir():
            os.chdir(self.working_folder)
        return None


def with_resolved_device(run: Run) -> Run:
    """Return the run with the device and dtype that `auto` stands for in this process.

    The name of the run depends on the device and the dtype, and `auto` may stand for something else on another machine.
    """
    device = planned_device(run.config.train)
    train = run.config.train.model_copy(update={"device": device.type, "dtype": device.format})
    return replace(run, config=run.config.model_copy(update={"train": train}))


class _Notes(Callback):
    """Callback that collects the notes of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_note(self, text: str) -> None:
        self.texts.append(text)


def _error_message(error: Exception) -> str:
    """Return the error message for the user. If the error is a bug, also print its traceback."""
    if message := user_message(error):
        return message
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameter count below which runs are trained side by side with one thread each. This gives more tokens per second
than one run at a time with all threads (measured with 1.3M parameters: benchmarks/side_by_side.py)."""

MOST_BESIDE_A_GPU = 8
"""Largest number of CPU threads for a run on a GPU. More threads would be idle."""


@dataclass(frozen=True)
class RunNeeds:
    """Resources that one run needs."""

    cores: int
    gpus: int
    memory: int
    """Bytes of host memory. GPU memory is not included."""

    def __str__(self) -> str:
        gpus = f", {plural(self.gpus, 'GPU')}" if self.gpus else ""
        return f"{plural(self.cores, 'core')}{gpus} and {binary(self.memory)} of memory"


def needs(configs: Sequence[Config], threads: int) -> RunNeeds:
    """Return resources that are enough for a run with any of these configs."""
    device = planned_device(configs[0].train).type
    return RunNeeds(threads, int(device == "cuda"), max(map(_memory, configs)))


def needs_of(runs: Sequence[Run]) -> RunNeeds:
    """Return resources that are enough for each of the runs. Runs that differ only in their seeds are considered
    once."""
    unseeded = (run.config.train.model_copy(update={"seed": 0}) for run in runs)
    by_shape = {str((run.config.model, train)): run.config for run, train in zip(runs, unseeded, strict=True)}
    return needs(list(by_shape.values()), max(run.threads for run in runs))


def _memory(config: Config) -> int:
    device = planned_device(config.train)
    return host_memory(config, device.type, device.format)


def default_threads(configs: Sequence[Config]) -> int:
    """Return the default number of threads per run.

    On a CPU: one thread if all models are small, so that several runs train side by side; otherwise all cores. On GPUs:
    the number of cores per GPU, at most `MOST_BESIDE_A_GPU`.
    """
    if planned_device(configs[0].train).type == "cuda":
        return max(1, min(MOST_BESIDE_A_GPU, cores() // max(1, torch.cuda.device_count())))
    small = all(parameters(config.model).total < SIDE_BY_SIDE_BELOW for config in configs)
    return 1 if small else cores()
