"""A picture of one field of the tuning grid: what each arm reaches at each value, and which one it is compared with."""

import altair as alt

from archlab.config.core.yaml_text import to_yaml_line
from archlab.report.charts.axes import padded, without_outliers
from archlab.report.charts.lines import YAxis, single_out
from archlab.report.study.arms import labels
from archlab.report.study.grids import over_values
from archlab.report.study.tuning_rows import grid_values, tuning_rows
from archlab.study.record import StudySummary


def tuning(summary: StudySummary, field: str) -> alt.LayerChart:
    """A line per arm over the values of the grid, evenly spaced. A ring is the value that the arm is compared with, a
    square one where it lies at the edge; a cross at the edge of the picture is a point whose runs diverged."""
    rows, named = tuning_rows(summary, field), list(labels(summary).values())
    means = without_outliers([row["mean"] for row in rows if row["mean"] is not None]) or [0.0]
    y = YAxis(summary.evaluated, summary.evaluated, *padded(means[0], means[-1]))
    worst = y.high if summary.evaluated == "bits per byte" else y.low
    values = [to_yaml_line(value) for value in grid_values(summary, field)]
    scale = alt.Scale(domain=values, padding=0.15)
    x = alt.X("value:O", scale=scale, axis=alt.Axis(title=f"{field}, values of the grid", labelAngle=0, grid=False))
    description = f"{summary.evaluated} of every arm over the values of {field} that were tried"
    return over_values(rows, x, y, worst, named, description).add_params(single_out())
