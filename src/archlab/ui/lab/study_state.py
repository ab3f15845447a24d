"""State of a study while it runs: its runs by arm and seed, their curves, and the load of the machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from archlab.config.core.text import visible
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder
from archlab.files import RUNS
from archlab.pricing.units import seconds
from archlab.report.run.watched import Watched, watch
from archlab.study.arm import Arm
from archlab.study.design import arms
from archlab.study.known_runs import KnownRuns, known_runs
from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study, study_path
from archlab.study.summary_file import has_summary, read_summary
from archlab.training.run_files import ENVIRONMENT, SUMMARY
from archlab.ui.lab.curves import TRAINING_LOSS, Chart, Curve, chart, held_out, training_loss
from archlab.ui.lab.load import machine_load


class RunCell(NamedTuple):
    """One run in the grid of arms and seeds."""

    status: str
    value: str
    """Latest held-out value, or an empty string."""
    progress: str


_POINTS = 100
"""Maximum number of points on the curve of one run's training loss."""

_NO_RUN = RunCell("no run", "", "")
"""Cell of a seed that the largest size of a study leaves out."""


class MoreSeeds(NamedTuple):
    """A finished study with more seeds."""

    n: int
    """Number of seeds per arm."""
    time: str
    """Time to train and evaluate the additional runs, as measured in the study's own runs. Empty if it is unknown."""


class StudyState(NamedTuple):
    """State of a study."""

    folder: str
    question: str
    seeds: list[int]
    rows: list[tuple[str, list[RunCell]]]
    """Label of each arm, and its run with each seed."""
    others: list[tuple[str, RunCell]]
    """Runs before the comparison: the base and the tuning runs."""
    measure: str
    """Measure of the held-out values, in words. Empty before the first run begins."""
    charts: list[Chart]
    """Training losses and held-out values of the compared runs over training tokens, if a run has two of them."""
    load: str
    is_finished: bool
    """Whether all planned runs have ended, so that a verdict may be shown."""
    answer: str
    """Answer of the study. Empty before all planned runs have ended."""
    warnings: Sequence[str]
    """Warnings that belong to the answer."""
    one_more_seed: MoreSeeds | None
    """The study with one more seed, if it is finished and can have one."""
    note: str


class _StudyRuns(NamedTuple):
    """A study with the states of its runs."""

    folder: Path
    config: StudyConfig
    arms: list[Arm]
    seeds: list[int]
    before: list[tuple[str, Watched | None]]
    """Label and state of each run before the comparison."""
    compared: dict[str, dict[int, Watched | None]]
    """State of each run of the comparison, by arm and seed."""
    note: str
    """Reason why the runs are unknown. Empty if they are known."""

    @classmethod
    def of(cls, folder: Path) -> "_StudyRuns":
        _, config = read_study(folder)
        designed, note = arms(config, study_path(folder)), ""
        try:
            runs = known_runs(folder, designed)
        except UserError as error:
            runs, note = KnownRuns(), str(error)
        states = _states([*(run.name for run in runs.before), *_names(runs)], folder)
        seeds = [*config.seed_list, *(seed for named in runs.compared.values() for seed in named)]
        named = {arm.name: runs.compared.get(arm.name, {}) for arm in designed}
        return cls(
            folder,
            config,
            designed,
            list(dict.fromkeys(seeds)),
            [(run.label, states.get(run.name)) for run in runs.before],
            {arm: {seed: states.get(name) for seed, name in by_seed.items()} for arm, by_seed in named.items()},
            note,
        )

    @property
    def is_finished(self) -> bool:
        """Whether all planned runs have ended, so that a verdict may be shown."""
        planned = ((arm, seed) for arm in self.arms for seed in self.seeds if self.config.has_run(arm.size, seed))
        states = (self.compared[arm.name].get(seed) for arm, seed in planned)
        return all(state and state.summary for state in states) and has_summary(self.folder)

    @property
    def begun(self) -> list[Watched]:
        """Runs that have begun, in order."""
        by_seed = (state for states in self.compared.values() for state in states.values())
        return [state for state in (*(state for _, state in self.before), *by_seed) if state]


def is_finished(folder: Path) -> bool:
    """Return whether all planned runs of the study in a folder have ended. Raise UserError if it contains no study."""
    return has_summary(folder) and _StudyRuns.of(folder).is_finished


def has_begun(folder: Path) -> bool:
    """Return whether a run exists in a study folder. Before the first one, texts are downloaded and tokenized."""
    return any(is_run_folder(run) for run in folder.glob(f"{RUNS}/*"))


def study_state(folder: Path) -> StudyState:
    """Return the state of the study in a folder. Raise UserError if the folder contains no study."""
    runs = _StudyRuns.of(folder)
    config, designed, compared = runs.config, runs.arms, runs.compared
    rows = [
        (
            arm.label,
            [_cell(compared[arm.name].get(seed)) if config.has_run(arm.size, seed) else _NO_RUN for seed in runs.seeds],
        )
        for arm in designed
    ]
    begun = [
        (state, arm.label, color)
        for color, arm in enumerate(designed)
        for state in compared[arm.name].values()
        if state
    ]
    measure = next((state.measure for state in runs.begun), "").replace("_", " ")
    return StudyState(
        str(folder),
        config.question,
        runs.seeds,
        rows,
        [(label, _cell(state)) for label, state in runs.before],
        measure and f"held-out {measure}",
        _charts(
            {
                TRAINING_LOSS: [training_loss(*run, _POINTS) for run in begun],
                f"Held-out {measure}": [held_out(*run) for run in begun],
            }
        ),
        machine_load(),
        runs.is_finished,
        *_answer(folder, is_finished=runs.is_finished),
        _one_more_seed(runs) if runs.is_finished else None,
        visible(runs.note),
    )


def _answer(folder: Path, *, is_finished: bool) -> tuple[str, Sequence[str]]:
    """Return the answer of a study and its warnings."""
    if not is_finished:
        return "", []
    summary = read_summary(folder)
    return summary.answer, summary.warnings


def _charts(curves: Mapping[str, Sequence[Curve]]) -> list[Chart]:
    """Return the charts that have a line, by their titles."""
    return [drawn for title, lines in curves.items() if (drawn := chart(title, lines))]


def _names(runs: KnownRuns) -> list[str]:
    return [name for named in runs.compared.values() for name in named.values()]


def _states(names: Sequence[str], folder: Path) -> dict[str, Watched]:
    begun = {name: path for name in names if is_run_folder(path := folder / RUNS / name)}
    return dict(zip(begun, watch([*begun.values()]), strict=True)) if begun else {}


def _cell(state: Watched | None) -> RunCell:
    if state is None:
        return RunCell("waiting", "", "")
    value = "" if state.held_out is None or not state.steps else f"{state.held_out:.4f}"
    done = f"{state.steps / state.settings.steps:.0%}" if state.status in ("training", "stopped") else ""
    return RunCell(state.status, value, done)


def _one_more_seed(runs: _StudyRuns) -> MoreSeeds | None:
    """Return the study with one more seed. Return None if the seeds are not just a number.

    The time is that of the study's own finished runs, divided by the number of runs that were trained at once.
    """
    n = runs.config.seeds
    if not isinstance(n, int):
        return None
    trained = [runs.compared[arm.name].values() for arm in runs.arms if runs.config.has_run(arm.size, n)]
    finished = [[run for run in own if run and run.status == "finished"] for own in trained]
    spans = [[span for run in own if (span := _span(run))] for own in finished]
    if not spans or not all(spans):
        return MoreSeeds(n + 1, "")
    at_once = max(sum(begin <= begun < end for own in spans for begin, end in own) for own in spans for begun, _ in own)
    usual = (median_low([end - begin for begin, end in own]) for own in spans)  # a run that was paused took longer
    return MoreSeeds(n + 1, seconds(sum(usual) / at_once))


def _span(run: Watched) -> tuple[float, float] | None:
    """Return the times at which a finished run began and ended, in seconds. Return None if they are shorter than
    training: its files were copied."""
    begun, ended = ((run.path / name).stat().st_mtime for name in (ENVIRONMENT, SUMMARY))
    training = run.settings.trained / run.tokens_per_second if run.tokens_per_second else 0.0
    return (begun, ended) if ended - begun > training / 2 else None
