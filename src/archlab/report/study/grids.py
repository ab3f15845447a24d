"""Charts with a few values of one field on the horizontal axis: the values of a sweep, a tuning grid or a factor."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from archlab.config.core.yaml_text import to_yaml_line
from archlab.pricing.units import plural
from archlab.report.charts.axes import padded, without_outliers
from archlab.report.charts.lines import YAxis, names, opacity, single_out, tall_enough
from archlab.report.charts.marks import ChartRow, chart_of, color, dashes, layered, tooltip
from archlab.report.study.arms import labels, seed_effects
from archlab.study.formatting import amount, span
from archlab.study.outcomes.schema import Unit
from archlab.study.record import StudySummary, SweepPoint, TuningPoint

_HEIGHT = 220


def over_values(
    rows: Sequence[ChartRow],
    x: alt.X,
    y: YAxis,
    cross_at: float,
    arms: Sequence[str],
    description: str,
    seeds: Sequence[ChartRow] = (),
) -> alt.LayerChart:
    """Return a chart with one line per arm over the values of a field.

    `rows` holds the `mean` of an arm at each `value`. If the mean is None, because a run diverged, a cross is drawn at
    `cross_at`. A row with the `mark` `optimum` has a ring, and a row with `edge` has a square. `seeds` holds the `loss`
    of single seeds, which are drawn as thin lines.
    """
    clamped = [{**row, "line": None if row["mean"] is None else y.clamped(row["mean"])} for row in rows]
    height = tall_enough(_HEIGHT, len(arms))
    base = chart_of(clamped).encode(x=x, color=color(arms), tooltip=tooltip("arm", "text"))
    finished, diverged = base.transform_filter("datum.line !== null"), base.transform_filter("datum.line === null")
    layers = [
        *_seeds(seeds, x, y, arms),
        base.mark_line(strokeWidth=2).encode(y=y("line"), strokeDash=dashes(arms), opacity=opacity(1, 0.12)),
        finished.mark_point(filled=True, size=40).encode(y=y("line"), opacity=opacity(1, 0.12)),
        *(
            finished.transform_filter(f"datum.mark === '{mark}'")
            .mark_point(shape=shape, size=260, strokeWidth=2, filled=False)
            .encode(y=y("line"), opacity=opacity(1, 0.12))
            for mark, shape in (("optimum", "circle"), ("edge", "square"))
        ),
        diverged.mark_point(shape="cross", angle=45, size=110, filled=True).encode(
            y=alt.datum(cross_at), opacity=opacity(1, 0.12)
        ),
        *names(_ends(clamped, cross_at), y, "container", height, arms),
    ]
    return layered(layers, description, height)


def _seeds(seeds: Sequence[ChartRow], x: alt.X, y: YAxis, arms: Sequence[str]) -> list[alt.Chart]:
    if not seeds:
        return []
    clamped = [{**row, "line": None if row["loss"] is None else y.clamped(row["loss"])} for row in seeds]
    base = chart_of(clamped).encode(x=x, color=color(arms), detail="seed:N", opacity=opacity(0.35, 0.06))
    return [base.mark_line(strokeWidth=1).encode(y=y("line"))]


def _ends(rows: Sequence[ChartRow], cross_at: float) -> list[ChartRow]:
    return [{**row, "mean": cross_at if row["line"] is None else row["line"]} for row in rows]


def aligned(seeds: Sequence[ChartRow]) -> list[ChartRow]:
    """Return the rows of seeds, with the effect that each seed has on all arms removed from its `loss`.

    `seed_effects` computes this effect from the losses of each combination of `arm` and `value`.
    """
    points: dict[tuple[Any, Any], dict[int, float]] = {}
    for row in seeds:
        if row["loss"] is not None:
            points.setdefault((row["arm"], row["value"]), {})[row["seed"]] = row["loss"]
    effects = seed_effects(points.values())
    return [
        row if row["loss"] is None else {**row, "loss": row["loss"] - effects.get(row["seed"], 0.0)} for row in seeds
    ]


def sweep(summary: StudySummary) -> alt.LayerChart | None:
    """Return a chart of the sweep, or None if nothing was swept.

    Each arm has a thick line for the mean over its seeds, and thin lines for single seeds, as returned by `aligned`. A
    ring marks the best value, or a square if the best value is at the edge of the grid. A cross marks a value at which
    a run diverged. The vertical axis ends at the loss of an untrained model, because outcomes replace higher losses by
    this loss.
    """
    if not summary.sweep:
        return None
    rows, seeds, arm_labels = sweep_rows(summary), aligned(sweep_seed_rows(summary)), list(labels(summary).values())
    losses = [row["loss"] for row in seeds if row["loss"] is not None] or [0.0]
    highest = max(min(max(losses), _untrained(summary)), min(losses))
    y = YAxis("bits per byte", "bits per byte", *padded(min(losses), highest))
    description = f"Loss of every arm over the values of {summary.sweep[0].field} that were swept"
    return over_values(rows, _sweep_axis(summary), y, y.high, arm_labels, description, seeds).add_params(single_out())


def _untrained(summary: StudySummary) -> float:
    starts = [curve.values[0] for arm in summary.arms for curve in arm.curves if curve.tokens[:1] == [0]]
    return max(starts, default=float("inf"))


def _sweep_axis(summary: StudySummary) -> alt.X:
    field, values = summary.sweep[0].field, sorted({point.value for point in summary.sweep})
    is_logarithmic = values[0] > 0
    scale = alt.Scale(
        type="log" if is_logarithmic else "linear", domain=[values[0], values[-1]], nice=False, padding=20
    )
    title = f"{field}, logarithmic axis" if is_logarithmic else field
    axis = alt.Axis(title=title, values=values, format="~g", labelOverlap="greedy", grid=False)
    return alt.X("value:Q", scale=scale, axis=axis)


def sweep_rows(summary: StudySummary) -> list[ChartRow]:
    """Return one row per arm and value: the mean over the seeds, or None if a run diverged.

    The value with the lowest mean has the `mark` `optimum`. If it is the smallest or the largest value tried, the
    `mark` is `edge` instead.
    """
    arm_labels = labels(summary)
    by_arm: dict[str, list[SweepPoint]] = {}
    for point in summary.sweep:
        by_arm.setdefault(point.arm, []).append(point)
    return [row for arm, points in by_arm.items() for row in _sweep_rows_of(arm_labels[arm], points)]


def _sweep_rows_of(label: str, points: Sequence[SweepPoint]) -> list[ChartRow]:
    mean_losses = {
        point.value: fmean(losses) for point in points if len(losses := _finished(point)) == len(point.losses)
    }
    best = min(mean_losses, key=lambda value: mean_losses[value], default=None)
    edges = (points[0].value, points[-1].value)
    return [
        {
            "arm": label,
            "value": point.value,
            "mean": mean_losses.get(point.value),
            "diverged": f"{len(point.losses) - len(_finished(point))} of {len(point.losses)} diverged",
            "mark": None if point.value != best else "edge" if best in edges else "optimum",
            "text": _sweep_text(point, mean_losses.get(point.value), point.value == best, best in edges),
        }
        for point in points
    ]


def _sweep_text(point: SweepPoint, mean: float | None, is_best: bool, at_edge: bool) -> str:
    losses = _finished(point)
    ends = span(*(amount(end(losses), "bits per byte") for end in (min, max))) if losses else ""
    parts = [
        f"{point.value:g}: " + (f"{len(point.losses) - len(losses)} of {plural(len(point.losses), 'seed')} diverged"
        if mean is None else f"{amount(mean, 'bits per byte')} bits per byte"),
        f"seeds {ends}" if losses else "",
        "best value" if is_best else "",
        "at the edge of the grid" if is_best and at_edge else "",
    ]  # fmt: skip
    return ", ".join(filter(None, parts))


def _finished(point: SweepPoint) -> list[float]:
    return [loss for loss in point.losses.values() if loss is not None]


def sweep_seed_rows(summary: StudySummary) -> list[ChartRow]:
    """Return one row per arm, value and seed: the loss, or None if the run diverged."""
    arm_labels = labels(summary)
    return [
        {"arm": arm_labels[point.arm], "value": point.value, "seed": seed, "loss": loss}
        for point in summary.sweep
        for seed, loss in point.losses.items()
    ]


def tuning(summary: StudySummary, field: str) -> alt.LayerChart | None:
    """Return a chart with one line per arm over the values of the tuning grid, which are evenly spaced. Return None if
    the scores of the arms mean different things.

    A ring marks the value that was chosen for the comparison, or a square if this value is at the edge of the grid. A
    cross at the edge of the chart marks a value at which a run diverged.
    """
    unit = summary.evaluated
    if unit is None:
        return None
    rows, arm_labels = tuning_rows(summary, field, unit), list(labels(summary).values())
    mean_losses = without_outliers([row["mean"] for row in rows if row["mean"] is not None]) or [0.0]
    y = YAxis(unit, unit, *padded(mean_losses[0], mean_losses[-1]))
    worst = y.low if unit == "share" else y.high
    values = [to_yaml_line(value) for value in grid_values(summary, field)]
    scale = alt.Scale(domain=values, padding=0.15)
    x = alt.X("value:O", scale=scale, axis=alt.Axis(title=f"{field}, values of the grid", labelAngle=0, grid=False))
    description = f"{unit} of every arm over the values of {field} that were tried"
    return over_values(rows, x, y, worst, arm_labels, description).add_params(single_out())


def tuned_fields(summary: StudySummary) -> list[str]:
    return list(summary.tuning[0].values) if summary.tuning else []


def grid_values(summary: StudySummary, field: str) -> list[Any]:
    """Return the values that were tried for a field. Numbers are in ascending order."""
    values = list({to_yaml_line(point.values[field]): point.values[field] for point in summary.tuning}.values())
    return sorted(values) if _are_numbers(values) else values


def tuning_rows(summary: StudySummary, field: str, unit: Unit) -> list[ChartRow]:
    """Return one row per arm and value of the field. Its `mean` is the best result of the grid points with this value.
    `unit` is the unit of the results.

    The result of a grid point is the mean over the tuning seeds. `mean` is None if runs diverged at all of these
    points. The value that was chosen for the comparison has the `mark` `optimum`, or `edge` if it is the smallest or
    the largest number in the grid.
    """
    arm_labels, values = labels(summary), grid_values(summary, field)
    edges = {to_yaml_line(values[end]) for end in (0, -1)} if _are_numbers(values) and len(values) > 1 else set[str]()
    points_at: dict[tuple[str, str], list[TuningPoint]] = {}
    for point in summary.tuning:
        points_at.setdefault((point.arm, to_yaml_line(point.values[field])), []).append(point)
    return [
        _tuning_row(arm_labels[arm], value, points_at[arm, value], value in edges, unit)
        for arm in dict.fromkeys(point.arm for point in summary.tuning)
        for value in map(to_yaml_line, values)
    ]


def _tuning_row(label: str, value: str, points: Sequence[TuningPoint], at_edge: bool, unit: Unit) -> ChartRow:
    finished = [fmean(point.results) for point in points if None not in point.results]  # pyright: ignore[reportArgumentType]
    best = max if unit == "share" else min
    mean = best(finished) if finished else None
    is_chosen = any(point.chosen for point in points)
    n_diverged = sum(None in point.results for point in points)
    parts = [
        f"{value}: " + ("diverged" if mean is None else f"{amount(mean, unit)} {unit}"),
        f"{plural(n_diverged, 'point')} of {len(points)} diverged" if n_diverged and mean is not None else "",
        "chosen for the comparison" if is_chosen else "",
        "at the edge of the grid" if is_chosen and at_edge else "",
    ]
    return {
        "arm": label,
        "value": value,
        "mean": mean,
        "mark": ("edge" if at_edge else "optimum") if is_chosen else None,
        "text": ", ".join(filter(None, parts)),
    }


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
