"""State of a run, during training or afterwards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

from archlab.config.schema import Config, TrainConfig
from archlab.config.training import resolve_train
from archlab.data.batch import ScoreName
from archlab.displayed import Charted, Library, as_frame
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder, load_config, why_no_run_folder
from archlab.files import real_path
from archlab.training.run_files import RunFiles
from archlab.training.spikes import PASSED_OVER, REWOUND, SKIPPED, SPIKE
from archlab.training.summary import RunSummary

_LATEST = 20
"""Number of latest updates from whose speed the end of the run is predicted."""

Status = Literal["not begun", "training", "stopped", "finished", "diverged"]


@dataclass(frozen=True, repr=False)
class Watched(Charted):
    """State of a run, as read from its folder at one point in time."""

    name: str
    path: Path
    config: Config
    metrics: Sequence[dict[str, Any]]
    summary: RunSummary | None
    environment: dict[str, Any]
    is_training: bool
    """Whether a process is training the run. Such a process locks the run's folder."""

    @property
    def status(self) -> Status:
        """Status of the run. A run is stopped if it has not ended and no process trains it."""
        if self.summary is not None:
            return self.summary.status
        return "training" if self.is_training else "stopped" if self.metrics else "not begun"

    def frame(self, library: Library | None = None) -> Any:
        """Return one row per line of metrics.jsonl: a training step or an evaluation.

        `library` is `pandas` or `polars`, for a data frame. None returns a list of dicts. Raise UserError if the
        library is not installed.
        """
        return as_frame([*self.metrics], library)

    @cached_property
    def settings(self) -> TrainConfig:
        """Training settings of the run, including all derived values."""
        return resolve_train(self.config)

    @cached_property
    def updates(self) -> list[dict[str, Any]]:
        """Log lines of training steps, including steps without an update."""
        return [line for line in self.metrics if "grad_norm" in line and "diverged" not in line]

    @property
    def measure(self) -> ScoreName:
        """Name of the score by which the run is evaluated."""
        others: tuple[ScoreName, ...] = ("accuracy", "denoising_loss")
        used: list[ScoreName] = [name for name in others if any(name in line for line in self.metrics)]
        return used[0] if used else "bits_per_byte"

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Log lines of evaluations that have a value."""
        return [line for line in self.metrics if self.measure in line]

    @property
    def steps(self) -> int:
        return self.updates[-1]["step"] if self.updates else 0

    @property
    def held_out(self) -> float | None:
        """Value of the latest evaluation. None before the first evaluation, or if the run diverged."""
        if not self.evaluations or self.status == "diverged":
            return None
        return self.evaluations[-1][self.measure]

    @property
    def tokens_per_second(self) -> float | None:
        """Median training speed in the latest updates. Time for evaluation and checkpoints is not counted.

        If the run has ended, this is the speed over the whole run.
        """
        if self.summary is not None:
            return self.summary.tokens_per_second
        speeds = [line["tokens_per_second"] for line in self.updates[-_LATEST:]]
        return median(speeds) if speeds else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated time in seconds until the run ends. Time for evaluation and checkpoints is not counted. None if the
        run is not training."""
        speed = self.tokens_per_second
        left = (self.settings.steps - self.steps) * self.settings.batch_tokens
        return left / speed if speed and self.status == "training" else None

    @property
    def spikes(self) -> list[dict[str, Any]]:
        """Log lines of steps whose loss or gradient jumped."""
        return [line for line in self.metrics if SPIKE in line]

    def notes(self) -> Iterable[str]:
        """Yield sentences for the reader of the report: why the run diverged, and which spikes it had."""
        if self.summary is not None and self.summary.why:
            yield f"diverged after {self.summary.steps:,} steps: {self.summary.why}"
        if self.spikes:
            largest = max(self.spikes, key=lambda line: line[SPIKE])
            number = "one spike, at " if len(self.spikes) == 1 else f"{len(self.spikes)} spikes, the largest at "
            yield f"{number}{describe_spike(largest)}"


def describe_spike(line: dict[str, Any]) -> str:
    """Return a description of a spike: its step, its size, and how training reacted to it."""
    if REWOUND in line:
        action = f"; rolled back to step {line['step']:,}, {line[PASSED_OVER]:,} batches skipped"
    else:
        action = "; no update was made" if SKIPPED in line else ""
    return (
        f"step {line.get(REWOUND, line['step']):,}: {line[SPIKE]:.1f} standard deviations above the recent mean{action}"
    )


def load_run(folder: str | Path) -> Watched:
    """Return the state of the run in a folder, during training or afterwards. Raise UserError if the folder is damaged
    or contains no run.

    >>> run = archlab.load_run("runs/a")
    >>> run.status
    'finished'
    >>> [row["step"] for row in run.frame()][-1]
    10
    """
    (run,) = watch([Path(folder)])
    return run


def watch(paths: Sequence[Path]) -> list[Watched]:
    """Return the state of the runs in these folders. Raise UserError if a folder is damaged or contains no run."""
    names = _names(paths)
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _read(path: Path, name: str) -> Watched:
    if not is_run_folder(path):
        hint = (
            "; for a study, use `archlab study report`"
            if (path / "study.yaml").is_file()
            else "; `archlab train` makes one"
        )
        raise UserError(why_no_run_folder(path) + hint)
    folder = RunFiles(path)
    is_training = folder.is_locked()  # before the files: if the run ends meanwhile, they include its end
    return Watched(name, path, load_config(path), folder.metrics(), folder.summary(), folder.environment(), is_training)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own name, preceded by as many parent folders as are needed to make all names
    different."""
    full_paths = [real_path(path).parts for path in paths]
    if len(set(full_paths)) < len(full_paths):
        twice = next(path for i, path in enumerate(paths) if full_paths[i] in full_paths[:i])
        raise UserError(f"{twice}: named twice; name each run once")
    n = next(
        n
        for n in range(1, max(map(len, full_paths)) + 1)
        if len({parts[-n:] for parts in full_paths}) == len(full_paths)
    )
    return ["/".join(parts[-n:]) for parts in full_paths]
