"""A picture of one field of the tuning grid: what each arm reaches at each value, and which one it is compared with."""

import altair as alt

from archlab.config.yaml_text import to_yaml_line
from archlab.report.arm_lines import YAxis, colour, dashes, names, opacity, tall_enough
from archlab.report.marks import data, layered, tooltip
from archlab.report.ranges import padded, without_outliers
from archlab.report.rows import labels
from archlab.report.tuning_rows import grid_values, tuning_rows
from archlab.study.record import StudySummary


def tuning(summary: StudySummary, field: str) -> alt.LayerChart:
    """A line per arm over the values of the grid, evenly spaced. A ring is the value that the arm is compared with, a
    square one where it lies at the edge; a cross at the edge of the picture is a point whose runs diverged."""
    rows, named = tuning_rows(summary, field), list(labels(summary).values())
    finished = [row for row in rows if row["mean"] is not None]
    means = without_outliers([row["mean"] for row in finished]) or [0.0]
    y = YAxis(summary.evaluated, summary.evaluated, *padded(means[0], means[-1]))
    worst = y.high if summary.evaluated == "bits per byte" else y.low
    rows = [{**row, "at": worst if row["mean"] is None else y.held(row["mean"])} for row in rows]
    values = [to_yaml_line(value) for value in grid_values(summary, field)]
    scale = alt.Scale(domain=values, padding=0.15)
    x = alt.X("value:O", scale=scale, axis=alt.Axis(title=f"{field}, values of the grid", labelAngle=0, grid=False))
    base = alt.Chart(data(rows)).encode(x=x, color=colour(named), tooltip=tooltip("arm", "text"))
    found, lost = base.transform_filter("datum.mean !== null"), base.transform_filter("datum.mean === null")
    height = tall_enough(220, len(named))
    layers = [
        found.mark_line(strokeWidth=2).encode(y=y("at"), strokeDash=dashes(named), opacity=opacity(1, 0.12)),
        found.mark_point(filled=True, size=40).encode(y=y("at"), opacity=opacity(1, 0.12)),
        *(
            found.transform_filter(f"datum.mark === '{mark}'")
            .mark_point(shape=shape, size=260, strokeWidth=2, filled=False)
            .encode(y=y("at"), opacity=opacity(1, 0.12))
            for mark, shape in (("optimum", "circle"), ("edge", "square"))
        ),
        lost.mark_point(shape="cross", angle=45, size=110, filled=True).encode(y=y("at"), opacity=opacity(1, 0.12)),
        names([{**row, "mean": row["at"]} for row in rows], y, "container", height, named),
    ]
    description = f"{summary.evaluated} of every arm over the values of {field} that were tried"
    return layered(layers, "container", height, description).add_params(alt.param(name="chosen", value=None))
