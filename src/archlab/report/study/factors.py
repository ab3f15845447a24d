"""Pictures of two crossed factors: where lines are parallel, each does the same at all levels of the other."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import altair as alt

from archlab.config.core.yaml_text import to_yaml_line
from archlab.report.charts.axes import axis_title, padded
from archlab.report.charts.lines import YAxis, never_single_out
from archlab.report.charts.marks import ChartRow
from archlab.report.study.grids import aligned, over_values
from archlab.study.formatting import amount, plural, with_unit
from archlab.study.outcome_schema import Unit
from archlab.study.record import ArmSummary, StudySummary


class Pair(NamedTuple):
    """Two factors of a study."""

    lines: str
    """The one with a line per level."""
    over: str
    """The one over whose levels they are drawn."""


def pairs(summary: StudySummary) -> list[Pair]:
    """Every two factors, as the study's interactions have them; none where nothing is crossed."""
    factors = list(summary.arms[0].factors) if summary.contrasts else []
    return [Pair(*two) for two in combinations(factors, 2)]


def levels_of(summary: StudySummary, factor: str) -> list[str]:
    """In the study's order."""
    return list(dict.fromkeys(to_yaml_line(arm.factors[factor]) for arm in summary.arms))


def interaction(summary: StudySummary, pair: Pair) -> alt.LayerChart:
    """The outcome over the levels of one factor: a thick line per level of the other, the mean over the seeds, and a
    thin one per seed. A cross is where no seed has a value."""
    rows, seeds = factor_rows(summary, pair), factor_seed_rows(summary, pair)
    values = [row["loss"] for row in seeds] or [0.0]
    title = axis_title(summary.outcome).partition(" (")[0]
    y = YAxis(title, summary.outcome.unit, *padded(min(values), max(values)))
    worst = y.low if summary.outcome.better == "higher" else y.high
    scale = alt.Scale(domain=levels_of(summary, pair.over), padding=0.15)
    x = alt.X("value:O", scale=scale, axis=alt.Axis(title=pair.over, labelAngle=0, grid=False))
    named = levels_of(summary, pair.lines)
    description = f"{summary.outcome.title} over {pair.over}, a line per {pair.lines}"
    return over_values(rows, x, y, worst, named, description, seeds).add_params(never_single_out())


def factor_rows(summary: StudySummary, pair: Pair) -> list[ChartRow]:
    """Per level of both: the mean over the seeds; null where no seed has a value."""
    seeds = factor_seed_rows(summary, pair)
    found = list[ChartRow]()
    for (line, level), arms in _cells(summary, pair).items():
        values = [row["loss"] for row in seeds if (row["arm"], row["value"]) == (line, level)]
        mean = fmean(values) if values else None
        text = _point_text(level, mean, arms, summary.outcome.unit)
        found.append({"arm": line, "value": level, "mean": mean, "mark": None, "text": text})
    return found


def factor_seed_rows(summary: StudySummary, pair: Pair) -> list[ChartRow]:
    """Per level of both factors, and seed: the mean over all arms with these levels, which is that over the other
    factors; aligned, and left out where one of them has no value."""
    return aligned(
        [
            {"arm": line, "value": level, "seed": seed, "loss": value}
            for (line, level), arms in _cells(summary, pair).items()
            for seed, value in _by_seed(arms).items()
        ]
    )


def _cells(summary: StudySummary, pair: Pair) -> dict[tuple[str, str], list[ArmSummary]]:
    cells: dict[tuple[str, str], list[ArmSummary]] = {}
    for arm in summary.arms:
        here = to_yaml_line(arm.factors[pair.lines]), to_yaml_line(arm.factors[pair.over])
        cells.setdefault(here, []).append(arm)
    return cells


def _by_seed(arms: Sequence[ArmSummary]) -> dict[int, float]:
    found = {seed: [arm.values.get(seed) for arm in arms] for seed in arms[0].values}
    known = {seed: [value for value in values if value is not None] for seed, values in found.items()}
    return {seed: fmean(values) for seed, values in known.items() if len(values) == len(arms)}


def _point_text(level: str, mean: float | None, arms: Sequence[ArmSummary], unit: Unit) -> str:
    value = "no value" if mean is None else with_unit(amount(mean, unit), unit)
    lost = sum(len(arm.diverged) for arm in arms)
    return f"{value} at {level}" + (f", {plural(lost, 'run')} diverged" if lost else "")
