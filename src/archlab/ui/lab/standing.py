"""State of a study while it runs: its runs by arm and seed, their curves, and the load of the machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from archlab.config.core.text import visible
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder
from archlab.pricing.units import seconds
from archlab.report.run.watched import Watched, watch
from archlab.study.record import has_summary, read_summary
from archlab.study.runner import KnownRuns, Study
from archlab.study.runs import Run
from archlab.study.study_file import read_study, study_path
from archlab.ui.lab.curves import Chart, chart, held_out
from archlab.ui.lab.load import machine_load


class RunCell(NamedTuple):
    """One run in the grid of arms and seeds."""

    status: str
    value: str
    """Latest held-out value, or an empty string."""
    progress: str


class Standing(NamedTuple):
    """State of a study."""

    folder: str
    question: str
    seeds: list[int]
    rows: list[tuple[str, list[RunCell]]]
    """Label of each arm, and its run with each seed."""
    others: list[tuple[str, RunCell]]
    """Runs before the comparison: the base and the tuning runs."""
    chart: Chart | None
    """Held-out values of the compared runs over training tokens. None before a run has two."""
    load: str
    is_finished: bool
    """Whether all planned runs have ended, so that a verdict may be shown."""
    answer: str
    """Answer of the study. Empty before all planned runs have ended."""
    one_more_seed: str
    """Training time of one more seed of every arm, as measured in this study. Empty before a seed is finished."""
    note: str


def standing(folder: Path) -> Standing:
    """Return the state of the study in a folder. Raise UserError if the folder contains no study."""
    name, config = read_study(str(folder))
    study = Study(name, config, folder, source=study_path(str(folder)))
    note = ""
    try:
        runs = study.known_runs()
    except UserError as error:
        runs, note = KnownRuns([], {}), str(error)
    states = _states([*runs.before, *(run for by_seed in runs.compared.values() for run in by_seed.values())], folder)
    seeds = config.seed_list
    compared = {
        arm.name: {
            seed: states[run.name] for seed, run in runs.compared.get(arm.name, {}).items() if run.name in states
        }
        for arm in study.arms
    }
    rows = [(arm.label, [_cell(compared[arm.name].get(seed)) for seed in seeds]) for arm in study.arms]
    ended = [state for by_seed in compared.values() for state in by_seed.values() if state.summary]
    is_finished = len(ended) == len(study.arms) * len(seeds) and has_summary(folder)
    curves = [
        held_out(state, arm.label, color)
        for color, arm in enumerate(study.arms)
        for state in compared[arm.name].values()
    ]
    measure = next((state.measure for state in states.values()), "")
    per_seed = _seconds_per_seed(ended, len(study.arms))
    return Standing(
        str(folder),
        config.question,
        seeds,
        rows,
        [(run.label, _cell(states.get(run.name))) for run in runs.before],
        chart(f"Held-out {measure.replace('_', ' ')}", curves),
        machine_load(),
        is_finished,
        read_summary(folder).answer if is_finished else "",
        seconds(per_seed) if per_seed else "",
        visible(note),
    )


def _states(runs: Sequence[Run], folder: Path) -> dict[str, Watched]:
    begun = {run.name: run.folder(folder) for run in runs if is_run_folder(run.folder(folder))}
    return dict(zip(begun, watch([*begun.values()]), strict=True)) if begun else {}


def _cell(state: Watched | None) -> RunCell:
    if state is None:
        return RunCell("waiting", "", "")
    value = "" if state.held_out is None else f"{state.held_out:.4f}"
    done = f"{state.steps / state.settings.steps:.0%}" if state.status in ("training", "stopped") else ""
    return RunCell(state.status, value, done)


def _seconds_per_seed(ended: Sequence[Watched], n_arms: int) -> float | None:
    times = [
        run.settings.trained / run.tokens_per_second
        for run in ended
        if run.tokens_per_second and run.status == "finished"
    ]
    return n_arms * sum(times) / len(times) if times else None
