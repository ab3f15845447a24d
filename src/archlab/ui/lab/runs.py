"""Runs of `archlab train` below the folder of the server: a list of them, and the state of one."""

from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from archlab.config.core.text import visible
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder
from archlab.files import RUNS, is_locked
from archlab.pricing.units import count, seconds
from archlab.report.run.watched import Watched, watch
from archlab.training.run_files import LOCK, METRICS, SUMMARY, RunFiles
from archlab.ui.configs import folders_with
from archlab.ui.lab.curves import TRAINING_LOSS, Chart, chart, held_out, training_loss
from archlab.ui.lab.load import machine_load
from archlab.ui.lab.processes import log_of

_POINTS = 200
"""Maximum number of points on the curve of the training loss."""


class ListedRun(NamedTuple):
    """Run folder below the folder of the server."""

    path: str
    status: str
    loss: str
    """Training loss of the latest update in nats per token, or an empty string."""
    tokens: str
    """Trained tokens of the planned ones."""
    when: str
    """Date and time of the latest line of metrics."""

    @property
    def address(self) -> str:
        return f"/runs/of/{quote(self.path)}"


class RunState(NamedTuple):
    """State of one run."""

    path: str
    status: str
    facts: list[tuple[str, str]]
    notes: list[str]
    """Sentences about spikes and a divergence."""
    charts: list[Chart]


class RunList:
    """Runs below a folder. The state of a run is read again only when its files have changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, tuple[object, ListedRun]] = {}

    def runs(self) -> list[ListedRun]:
        """Return all runs that have begun and are not part of a study, the latest first."""
        begun = [folder for folder in folders_with(METRICS, self._root) if is_run_folder(folder)]
        folders = [folder for folder in begun if not RunFiles(folder).is_of_study]
        self._known = {folder: self._read(folder) for folder in folders}
        return sorted((run for _, run in self._known.values()), key=lambda run: run.when, reverse=True)

    def _read(self, folder: Path) -> tuple[object, ListedRun]:
        changed = (
            [_changed(folder / name) for name in (METRICS, SUMMARY)],
            RunFiles(folder).is_locked(),
        )
        if (known := self._known.get(folder)) and known[0] == changed:
            return known
        return changed, _listed(folder)


def run_state(folder: Path) -> RunState:
    """Return the state of a run. Raise UserError if its folder is damaged."""
    (run,) = watch([folder])
    charts = [
        chart(TRAINING_LOSS, [training_loss(run, "training loss", 0, _POINTS)]),
        chart(f"Held-out {run.measure.replace('_', ' ')}", [held_out(run, "held-out data", 0)]),
    ]
    facts = [
        ("Trained", _tokens(run)),
        ("Training loss", _loss(run)),
        (f"Held-out {run.measure.replace('_', ' ')}", "" if run.held_out is None else f"{run.held_out:.4f}"),
        ("Speed", "" if run.tokens_per_second is None else f"{count(run.tokens_per_second)} tokens/s"),
        ("Time left", "" if run.seconds_left is None else seconds(run.seconds_left)),
        ("Machine", machine_load() if run.status == "training" else ""),
    ]
    return RunState(
        str(folder),
        run.status,
        [(name, value) for name, value in facts if value],
        [visible(note) for note in run.notes()],
        [drawn for drawn in charts if drawn],
    )


def is_trained_elsewhere(folder: Path) -> bool:
    """Return whether a process that this server has not started trains a run of the study in this folder, or prepares
    it. Call this only if this server does not train the study."""
    return is_locked(log_of(folder)) or any(is_locked(lock) for lock in folder.glob(f"{RUNS}/*/{LOCK}"))


def _listed(folder: Path) -> ListedRun:
    when = datetime.fromtimestamp((folder / METRICS).stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    try:
        (run,) = watch([folder])
    except UserError as error:
        return ListedRun(str(folder), visible(str(error)), "", "", when)
    return ListedRun(str(folder), run.status, _loss(run), _tokens(run), when)


def _loss(run: Watched) -> str:
    return f"{run.updates[-1]['loss']:.3f}" if run.updates else ""


def _tokens(run: Watched) -> str:
    settings = run.settings
    return f"{count(run.steps * settings.batch_tokens)} of {count(settings.steps * settings.batch_tokens)} tokens"


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
