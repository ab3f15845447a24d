"""Progress of a study in the terminal: a bar for the runs of each phase, and a line for each run that ends."""

from collections.abc import Callable, Sequence
from typing import Self

from archlab.config.core.text import note
from archlab.config.training import resolve_train
from archlab.pricing.units import plural
from archlab.pricing.work import visible_training_flops
from archlab.progress import Bar
from archlab.study.executors.executor import RunProgress
from archlab.study.outcomes.timing import ROUNDS
from archlab.study.runs import Run
from archlab.training.summary import RunSummary

_COLUMNS = 80
"""Maximum width of a line with the remaining time. A longer line omits the time."""


class StudyProgress:
    """Show the progress of a study, phase by phase: start, tuning, comparison, timing."""

    def __init__(self) -> None:
        self._bar = Bar(seconds_between_lines=None)
        self._noted: set[tuple[str, str]] = set()

    def __call__(self, runs: Sequence[Run]) -> "PhaseProgress":
        """Begin a phase with these runs, and return its progress display."""
        phase = runs[0].phase
        self._bar.begin(phase)
        weights = "trained" if _begins_trained(runs[0]) else "random"
        self._bar.print(f"{phase}: {plural(len(runs), 'run')}, from {weights} weights")
        return PhaseProgress(self._bar, runs, self._noted)

    def timing(self, title: str) -> Callable[[int], None]:
        """Begin timing the outcome with this title, and return a callback that takes the number of finished rounds."""
        self._bar.begin(f"timing {title}")
        self._bar.print(f"timing, with nothing else running: {title}")
        return lambda rounds: self._bar.update(rounds / ROUNDS, f"{rounds}/{ROUNDS}")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)


class PhaseProgress:
    """Show the runs of one phase. A note that many runs share is printed only once.

    In a study that begins from trained weights, it is printed once for each model, because it may say what the model
    has made of the weights.
    """

    def __init__(self, bar: Bar, runs: Sequence[Run], noted: set[tuple[str, str]]) -> None:
        self._bar, self._noted = bar, noted
        self._share_done = dict.fromkeys((run.name for run in runs), 0.0)
        self._weight = {run.name: _work(run) for run in runs}
        self._ended = 0
        self._busy: set[str] = set()
        self._move()

    def __call__(self, progress: RunProgress) -> None:
        name, label = progress.run.name, progress.run.label
        if not progress.note:  # a note does not say how far the run is
            self._share_done[name] = progress.share_done
        if progress.note:
            self._note(progress.run, progress.note)
        if progress.busy and name not in self._busy:
            self._busy.add(name)
            note(f"{label}: another process is training this run; waiting for that process")
        if progress.failed:
            note(f"{label}: failed: {progress.failed}")
        if progress.summary is not None:
            self._ended += 1
            self._bar.print(self._with_time_left(f"{self._ended:3}/{self._all}  {label}: {_result(progress.summary)}"))
        self._move()

    def _note(self, run: Run, text: str) -> None:
        key = (run.config.model.model_dump_json() if _begins_trained(run) else "", text)
        if key not in self._noted:
            self._noted.add(key)
            note(f"{run.label}: {text}")

    @property
    def _all(self) -> int:
        return len(self._share_done)

    @property
    def _share(self) -> float:
        done = sum(self._weight[name] * share for name, share in self._share_done.items())
        return done / sum(self._weight.values())

    def _move(self) -> None:
        self._bar.update(self._share, f"{self._ended}/{self._all} runs")

    def _with_time_left(self, line: str) -> str:
        """Append the remaining time if the output is not a terminal. In a terminal, the bar shows it."""
        time_left = "" if self._bar.is_drawn or self._ended == self._all else self._bar.time_left(self._share)
        return f"{line}; {time_left}" if time_left and len(f"{line}; {time_left}") <= _COLUMNS else line


def _work(run: Run) -> float:
    """Return the FLOPs of a run, which estimate its duration relative to that of other runs."""
    return visible_training_flops(run.config) * resolve_train(run.config).trained


def _begins_trained(run: Run) -> bool:
    return run.start is not None or run.config.train.start is not None


def _result(summary: RunSummary) -> str:
    if summary.status != "finished":
        return f"diverged: {summary.why}"
    if summary.denoising_loss is not None:
        return f"{summary.denoising_loss:.4f} nats per hidden token"
    bits = summary.bits_per_byte
    return f"{summary.accuracy:.2%} right" if bits is None else f"{bits:.4f} bits per byte"
