"""Processes that train studies. They go on if the browser is closed, and stop like Ctrl-C when the server stops."""

import fcntl
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock

from archlab.config.core.text import note
from archlab.errors import UserError

_SHOWN = 20
"""Number of lines of a process's output that the page shows."""


class StudyProcesses:
    """Processes that this server has started, by study folder."""

    def __init__(self) -> None:
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        self._paused = set[Path]()
        self._lock = Lock()

    def start(self, folder: Path, source: str, n_seeds: int | None = None) -> None:
        """Train the study `source` in `folder`, or continue it, with this number of seeds. By default, it has those of
        `source`. Raise UserError if a process trains the study already."""
        from archlab.ui.lab.runs import is_trained_elsewhere  # loads all packages that read runs

        with self._lock:
            if self.is_running(folder):
                raise UserError(f"this server trains {folder} already; wait for its end, or pause it first")
            if is_trained_elsewhere(folder):
                raise UserError(f"another process trains {folder}; wait for its end, or stop it first")
            command = [sys.executable, "-m", "archlab", "study", "run", source, "--out", str(folder)]
            command += [] if n_seeds is None else ["--seeds", str(n_seeds)]
            log = log_of(folder)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, because it inherits it
                output.truncate(0)
                self._paused.discard(folder)
                self._processes[folder] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )

    def pause(self, folder: Path) -> None:
        """Stop training as Ctrl-C does: every run writes a checkpoint. Raise UserError if this server does not train
        the study."""
        with self._lock:
            if not self.is_running(folder):
                raise UserError(f"this server does not train {folder}; to pause it, press Ctrl-C where it was started")
            self._processes[folder].send_signal(signal.SIGTERM)
            self._paused.add(folder)

    def is_pausing(self, folder: Path) -> bool:
        """Return whether a study was paused and its runs still write their checkpoints."""
        return folder in self._paused and self.is_running(folder)

    def has_started(self, folder: Path) -> bool:
        """Return whether this server has started to train the study in this folder."""
        return folder in self._processes

    def is_running(self, folder: Path) -> bool:
        process = self._processes.get(folder)
        return process is not None and process.poll() is None

    def folders(self) -> list[Path]:
        """Return the folders of the studies that this server trains or has trained."""
        return [*self._processes]

    def output(self, folder: Path) -> list[str]:
        """Return the last lines that the process of a study has printed."""
        try:
            return log_of(folder).read_text(errors="replace").splitlines()[-_SHOWN:]
        except OSError:
            return []

    def stop(self) -> None:
        """Stop all processes and wait until they have saved. If the wait is interrupted, they save and end alone."""
        running = {folder: process for folder, process in self._processes.items() if self.is_running(folder)}
        if running:
            note(f"saving {', '.join(map(str, running))}; this can take a minute")
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait()


def log_of(folder: Path) -> Path:
    """Return the file with the output of the process that trains a study. The process holds its lock."""
    return folder.with_name(f"{folder.name}.log")
