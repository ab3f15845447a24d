"""What trains a study's runs: this machine, a Ray cluster, or jobs of Slurm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from archlab.study.runs import Run
from archlab.training.summary import RunSummary


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
