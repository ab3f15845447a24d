"""A picture of two crossed factors: where lines are parallel, each does the same at all levels of the other."""

import altair as alt

from archlab.report.charts.axes import axis_title, padded
from archlab.report.charts.lines import YAxis, never_single_out
from archlab.report.study.factors import Pair, factor_rows, factor_seed_rows, levels_of
from archlab.report.study.grids import over_values
from archlab.study.record import StudySummary


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
