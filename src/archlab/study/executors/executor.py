"""What all executors share: how runs are asked for, trained and told of, and what they need of a machine."""

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
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.pricing.summary import step_memory_of
from archlab.pricing.units import binary
from archlab.study.formatting import plural
from archlab.study.outcomes.weights import measure
from archlab.study.runs import Run
from archlab.training.callback import Callback
from archlab.training.code_digest import code_digest
from archlab.training.device import planned_device
from archlab.training.run_folder import BusyError
from archlab.training.summary import RunSummary
from archlab.training.train import train


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


OnProgress = Callable[[RunProgress], None]


class Executor(Protocol):
    """Where runs are trained. What it leaves is in the study's folder alone, so another one can go on at any time."""

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        """Train every run in its folder below `study`; finished ones are only read. Returns the runs that failed.

        A run that fails, or whose worker dies, ends no other run. A run that another process trains is waited for.
        KeyboardInterrupt is raised here once all that trained have stopped, each with a checkpoint; jobs of a Slurm
        cluster may still be saving theirs.
        """
        ...


def train_run(run: Run, study: Path, callback: Callback) -> RunProgress:
    """Train it in its folder below `study`, and measure its weights; how it ended, whatever happened to it."""
    torch.set_num_threads(run.threads)
    try:
        folder = run.folder(study)
        summary = train(run.config, folder, callback, run.corpus)
        if summary.status == "finished":
            measure(run.measures, run.config, folder)
        return RunProgress(run, 1.0, summary)
    except BusyError:
        return RunProgress(run, 0.0, busy=True)
    except Exception as error:
        return RunProgress(run, 0.0, failed=_why(error))


@dataclass(frozen=True)
class Errand:
    """Runs of one study, to be trained by processes that may be on other machines."""

    study: Path
    """Its folder, as a full path that all machines know."""
    here: Path
    """Where the command was given: paths of texts may be relative to it."""
    code: str
    """Digest of the code of archlab that gave it."""

    @classmethod
    def of(cls, study: Path) -> "Errand":
        """As given by this process."""
        return cls(real_path(study), Path.cwd(), code_digest())

    def __call__(self, run: Run) -> list[RunProgress]:
        """Train it; its notes, and last how it ended."""
        if (wrong := self._wrong_here()) is not None:
            return [RunProgress(run, 0.0, failed=f"{socket.gethostname()}: {wrong}")]
        notes = _Notes()
        ended = train_run(run, self.study, notes)
        return [*(RunProgress(run, 0.0, note=text) for text in notes.texts), ended]

    def _wrong_here(self) -> str | None:
        """What this machine lacks."""
        if not self.study.is_dir():
            return f"no folder {self.study}; a study on several machines needs a folder that all of them see"
        if code_digest() != self.code:
            return "has other code of archlab than the machine that runs the study; install the same"
        if self.here.is_dir():
            os.chdir(self.here)
        return None


def settled(run: Run) -> Run:
    """The same run, with the device and the number format that `auto` means to this process, which has named the run by
    them; another machine might decide otherwise."""
    device = planned_device(run.config.train)
    train = run.config.train.model_copy(update={"device": device.type, "dtype": device.format})
    return replace(run, config=run.config.model_copy(update={"train": train}))


class _Notes(Callback):
    """Keeps what the user should know."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_note(self, text: str) -> None:
        """Keep it."""
        self.texts.append(text)


def _why(error: Exception) -> str:
    """What the user is told; for a bug its name, and its traceback is printed too."""
    if message := user_message(error):
        return message
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameters up to which several one-thread processes train more tokens per second than one process with
all threads (measured at 1.3M: benchmarks/side_by_side.py)."""

MOST_BESIDE_A_GPU = 8
"""Threads of a run whose products a GPU computes: more only wait."""

_PROCESS = {"cpu": 2**30, "cuda": 4 * 2**30}
"""Bytes that Python and torch take of the machine's memory without a model, by kind of device, and a text's windows."""

_MARGIN = 1.25
"""To what `archlab cost` counts of a step, for evaluations and for memory in pieces."""


@dataclass(frozen=True)
class RunNeeds:
    """Of one run."""

    cores: int
    gpus: int
    memory: int
    """Bytes of the machine's memory, not of the GPU's."""

    def __str__(self) -> str:
        gpus = f", {plural(self.gpus, 'GPU')}" if self.gpus else ""
        return f"{plural(self.cores, 'core')}{gpus} and {binary(self.memory)} of memory"


def needs(configs: Sequence[Config], threads: int) -> RunNeeds:
    """Enough for a run of each, with so many threads; they are of one study."""
    on = planned_device(configs[0].train).type
    return RunNeeds(threads, int(on == "cuda"), max(map(_memory, configs)))


def needs_of(runs: Sequence[Run]) -> RunNeeds:
    """Enough for each of the runs; those of an arm differ in what costs nothing, such as their seeds."""
    unseeded = (run.config.train.model_copy(update={"seed": 0}) for run in runs)
    by_shape = {str((run.config.model, train)): run.config for run, train in zip(runs, unseeded, strict=True)}
    return needs(list(by_shape.values()), max(run.threads for run in runs))


def _memory(config: Config) -> int:
    """On a GPU the machine holds the copy alone of which a checkpoint is written."""
    device = planned_device(config.train)
    held = training_memory(parameters(config.model), config.train.optimizer)
    copied = held.weights + held.optimizer
    beside = _PROCESS[device.type] + copied
    if device.type != "cpu":
        return beside
    step = step_memory_of(config, device.format).peak_of(recompute=config.train.recompute)
    return beside + round(_MARGIN * step)


def usual_threads(configs: Sequence[Config]) -> int:
    """Of each run of a study: one where small models train side by side on a CPU, else all that it can use."""
    if planned_device(configs[0].train).type == "cuda":
        return max(1, min(MOST_BESIDE_A_GPU, cores() // max(1, torch.cuda.device_count())))
    small = all(parameters(config.model).total < SIDE_BY_SIDE_BELOW for config in configs)
    return 1 if small else cores()
