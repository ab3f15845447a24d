"""Charts of two crossed factors. The lines are parallel if one factor has the same effect at every level of the other
factor."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import altair as alt

from archlab.config.core.yaml_text import to_yaml_line
from archlab.pricing.units import plural
from archlab.report.charts.axes import axis_title, padded
from archlab.report.charts.lines import YAxis, never_single_out
from archlab.report.charts.marks import ChartRow
from archlab.report.study.grids import aligned, over_values
from archlab.study.formatting import amount, with_unit
from archlab.study.outcomes.schema import Unit
from archlab.study.record import ArmSummary, StudySummary


class Pair(NamedTuple):
    """Two factors of a study that are drawn in one chart."""

    lines: str
    """Factor that has one line for each of its levels."""
    over: str
    """Factor whose levels are on the horizontal axis."""


def pairs(summary: StudySummary) -> list[Pair]:
    """Return every pair of factors, in the order of the study's interactions. Empty if the study does not cross
    factors."""
    factors = list(summary.arms[0].factors) if summary.contrasts else []
    return [Pair(*two) for two in combinations(factors, 2)]


def levels_of(summary: StudySummary, factor: str) -> list[str]:
    return list(dict.fromkeys(to_yaml_line(arm.factors[factor]) for arm in summary.arms))


def interaction(summary: StudySummary, pair: Pair) -> alt.LayerChart:
    """Return a chart of the outcome over the levels of the factor `pair.over`.

    Each level of the other factor has a thick line for the mean over the seeds, and thin lines for single seeds. A
    cross marks a combination of levels without any value.
    """
    rows, seeds = factor_rows(summary, pair), factor_seed_rows(summary, pair)
    values = [row["loss"] for row in seeds] or [0.0]
    title = axis_title(summary.outcome).partition(" (")[0]
    y = YAxis(title, summary.outcome.unit, *padded(min(values), max(values)))
    worst = y.low if summary.outcome.better == "higher" else y.high
    scale = alt.Scale(domain=levels_of(summary, pair.over), padding=0.15)
    x = alt.X("value:O", scale=scale, axis=alt.Axis(title=pair.over, labelAngle=0, grid=False))
    names = levels_of(summary, pair.lines)
    description = f"{summary.outcome.title} over {pair.over}, with a line per {pair.lines}"
    return over_values(rows, x, y, worst, names, description, seeds).add_params(never_single_out())


def factor_rows(summary: StudySummary, pair: Pair) -> list[ChartRow]:
    """Return one row per combination of two levels: the mean over the seeds, or None if no seed has a value."""
    seeds = factor_seed_rows(summary, pair)
    rows = list[ChartRow]()
    for (line, level), arms in _cells(summary, pair).items():
        values = [row["loss"] for row in seeds if (row["arm"], row["value"]) == (line, level)]
        mean = fmean(values) if values else None
        text = _point_text(f"{pair.over}={level}", mean, arms, summary.outcome.unit)
        rows.append({"arm": line, "value": level, "mean": mean, "mark": None, "text": text})
    return rows


def factor_seed_rows(summary: StudySummary, pair: Pair) -> list[ChartRow]:
    """Return one row per combination of two levels and seed. Its value is the mean over all arms with these levels,
    whatever their levels of other factors are.

    The effect that each seed has on all arms is removed as in `aligned`. A row is left out if one of its arms has no
    value.
    """
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
        levels = to_yaml_line(arm.factors[pair.lines]), to_yaml_line(arm.factors[pair.over])
        cells.setdefault(levels, []).append(arm)
    return cells


def _by_seed(arms: Sequence[ArmSummary]) -> dict[int, float]:
    values_by_seed = {seed: [arm.values.get(seed) for arm in arms] for seed in arms[0].values}
    complete = {seed: [value for value in values if value is not None] for seed, values in values_by_seed.items()}
    return {seed: fmean(values) for seed, values in complete.items() if len(values) == len(arms)}


def _point_text(level: str, mean: float | None, arms: Sequence[ArmSummary], unit: Unit) -> str:
    value = "no value" if mean is None else with_unit(amount(mean, unit), unit)
    n_diverged = sum(len(arm.diverged) for arm in arms)
    return f"{value} at {level}" + (f", {plural(n_diverged, 'run')} diverged" if n_diverged else "")
