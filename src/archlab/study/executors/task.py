"""One run, trained in this process, whoever asked for it."""

import os
import socket
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from archlab.code import code_digest
from archlab.errors import user_message
from archlab.files import real_path
from archlab.study.executors.executor import RunProgress
from archlab.study.outcomes.weights import measure
from archlab.study.runs import Run
from archlab.training.callback import Callback
from archlab.training.device import planned_device
from archlab.training.run_folder import BusyError
from archlab.training.train import train


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
