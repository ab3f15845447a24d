"""A run as it stands, while it trains or afterwards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

from archlab.config.schema import Config, TrainConfig
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.files import real_path
from archlab.infer.load import is_run_folder
from archlab.training.run_folder import RunFolder
from archlab.training.spikes import PASSED_OVER, REWOUND, SKIPPED, SPIKE
from archlab.training.summary import RunSummary

_LATEST = 20
"""Updates whose speed says when the run will end."""

Status = Literal["not begun", "training", "stopped", "finished", "diverged"]


@dataclass(frozen=True)
class Watched:
    """One run, read once."""

    name: str
    path: Path
    config: Config
    metrics: Sequence[dict[str, Any]]
    summary: RunSummary | None
    environment: dict[str, Any]
    is_training: bool
    """Whether a process holds its folder now."""

    @property
    def status(self) -> Status:
        """stopped: it has no end, and nobody trains it."""
        if self.summary is not None:
            return self.summary.status
        return "training" if self.is_training else "stopped" if self.metrics else "not begun"

    @cached_property
    def settings(self) -> TrainConfig:
        """With every derived value."""
        return resolve_train(self.config)

    @cached_property
    def updates(self) -> list[dict[str, Any]]:
        """The lines of the steps, with or without an update."""
        return [line for line in self.metrics if "grad_norm" in line and "diverged" not in line]

    @property
    def measure(self) -> Literal["bits_per_byte", "accuracy"]:
        """What its evaluations are about."""
        return "accuracy" if any("accuracy" in line for line in self.metrics) else "bits_per_byte"

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of those that have a value."""
        return [line for line in self.metrics if self.measure in line]

    @property
    def steps(self) -> int:
        """Made so far."""
        return self.updates[-1]["step"] if self.updates else 0

    @property
    def held_out(self) -> float | None:
        """The newest evaluation; None where there is none yet, or the run diverged."""
        if not self.evaluations or self.status == "diverged":
            return None
        return self.evaluations[-1][self.measure]

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the newest updates, evaluation and checkpoints left out; of a run that has ended, over all."""
        if self.summary is not None:
            return self.summary.tokens_per_second
        speeds = [line["tokens_per_second"] for line in self.updates[-_LATEST:]]
        return median(speeds) if speeds else None

    @property
    def seconds_left(self) -> float | None:
        """At this speed, evaluation and checkpoints left out; None where it does not train."""
        speed = self.tokens_per_second
        left = (self.settings.steps - self.steps) * self.settings.batch_tokens
        return left / speed if speed and self.status == "training" else None

    @property
    def spikes(self) -> list[dict[str, Any]]:
        """The lines of steps whose loss or gradient jumped."""
        return [line for line in self.metrics if SPIKE in line]

    def notes(self) -> Iterable[str]:
        """What its reader should know, in sentences."""
        if self.summary is not None and self.summary.why:
            yield f"diverged after {self.summary.steps:,} steps: {self.summary.why}"
        if self.spikes:
            largest = max(self.spikes, key=lambda line: line[SPIKE])
            several = "a spike: " if len(self.spikes) == 1 else f"{len(self.spikes)} spikes, the largest at "
            yield f"{several}{spiked(largest)}"


def spiked(line: dict[str, Any]) -> str:
    """What became of a jump, in words."""
    if REWOUND in line:
        what = f"; back to step {line['step']:,}, {line[PASSED_OVER]:,} batches passed over"
    else:
        what = "; no update was made" if SKIPPED in line else ""
    return f"step {line.get(REWOUND, line['step']):,}: {line[SPIKE]:.1f} deviations above the usual{what}"


def watch(paths: Sequence[Path]) -> list[Watched]:
    """The runs of these folders as they stand; UserError for what is no run folder, or damaged."""
    names = _names(paths)
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _read(path: Path, name: str) -> Watched:
    if not is_run_folder(path):
        hint = "; of a study: archlab study report" if (path / "study.yaml").is_file() else ""
        raise UserError(f"{path}: not a run folder (no config.yaml), which `archlab train` makes{hint}")
    folder = RunFolder(path)
    is_training = folder.is_locked()  # before its files, so that a run that ends meanwhile has an end
    return Watched(
        name, path, load_config(str(path)), folder.metrics(), folder.summary(), folder.environment(), is_training
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Of their folders, with as many of those above as tell them apart."""
    wholes = [real_path(path).parts for path in paths]
    if len(set(wholes)) < len(wholes):
        twice = next(path for i, path in enumerate(paths) if wholes[i] in wholes[:i])
        raise UserError(f"{twice}: is named twice; allowed: each run once")
    n = next(n for n in range(1, max(map(len, wholes)) + 1) if len({parts[-n:] for parts in wholes}) == len(wholes))
    return ["/".join(parts[-n:]) for parts in wholes]
