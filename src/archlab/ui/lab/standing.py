"""State of a study while it runs: its runs by arm and seed, their curves, and the load of the machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from archlab.config.core.text import visible
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder
from archlab.machine import cores
from archlab.pricing.units import binary, plural, seconds
from archlab.report.charts.palette import MODES, colors
from archlab.report.run.watched import Watched, watch
from archlab.study.record import has_summary, read_summary
from archlab.study.runner import KnownRuns, Study
from archlab.study.runs import Run
from archlab.study.study_file import read_study, study_path

_WIDTH, _HEIGHT, _MARGIN = 640, 260, 34


class RunCell(NamedTuple):
    """One run in the grid of arms and seeds."""

    status: str
    value: str
    """Latest held-out value, or an empty string."""
    progress: str


class Line(NamedTuple):
    """Learning curve of one run, as points of an SVG."""

    label: str
    points: str
    color: int


class Standing(NamedTuple):
    """State of a study."""

    folder: str
    question: str
    seeds: list[int]
    rows: list[tuple[str, list[RunCell]]]
    """Label of each arm, and its run with each seed."""
    others: list[tuple[str, RunCell]]
    """Runs before the comparison: the base and the tuning runs."""
    lines: list[Line]
    low: str
    high: str
    tokens: str
    """Largest number of tokens on the axis of the curves."""
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
    labels = [arm.label for arm in study.arms]
    drawn = [(index, state) for index, by_seed in enumerate(compared.values()) for state in by_seed.values()]
    lines, low, high, tokens = _lines(drawn, labels)
    per_seed = _seconds_per_seed(ended, len(study.arms))
    return Standing(
        str(folder),
        config.question,
        seeds,
        rows,
        [(run.label, _cell(states.get(run.name))) for run in runs.before],
        lines,
        low,
        high,
        tokens,
        machine_load(),
        is_finished,
        read_summary(folder).answer if is_finished else "",
        seconds(per_seed) if per_seed else "",
        visible(note),
    )


def machine_load() -> str:
    """Return the load of this machine and its free memory in words."""
    busy = os.getloadavg()[0]
    text = f"load {busy:.1f} on {plural(cores(), 'core')}"
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        text += f", {binary(1024 * int(fields['MemAvailable'].split()[0]))} of memory free"
    except (OSError, KeyError, ValueError):
        pass  # not Linux
    return text


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


def _lines(drawn: Sequence[tuple[int, Watched]], labels: Sequence[str]) -> tuple[list[Line], str, str, str]:
    """Return the learning curves, the smallest and largest value, and the largest number of tokens."""
    curves = [
        (arm, [(line["step"] * run.settings.batch_tokens, line[run.measure]) for line in run.evaluations])
        for arm, run in drawn
    ]
    # The first evaluation, before any training, would flatten all curves.
    curves = [(arm, curve[1:]) for arm, curve in curves if len(curve) > 1]
    if not curves:
        return [], "", "", ""
    values = [value for _, curve in curves for _, value in curve]
    low, high, last = min(values), max(values), max(tokens for _, curve in curves for tokens, _ in curve)
    across, up = (_WIDTH - 2 * _MARGIN) / last, (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1)
    lines = [
        Line(
            labels[arm],
            " ".join(f"{_MARGIN + x * across:.1f},{_HEIGHT - _MARGIN - (y - low) * up:.1f}" for x, y in curve),
            arm,
        )
        for arm, curve in curves
    ]
    return lines, f"{low:.3f}", f"{high:.3f}", f"{last:,}"


def line_colors(n: int) -> list[tuple[str, str]]:
    """Return the colors of `n` arms, in light and dark mode."""
    light, dark = (colors(n, mode) for mode in MODES)
    return list(zip(light, dark, strict=True))
