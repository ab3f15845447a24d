"""Charts of runs over training tokens, with one line per run."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import altair as alt

from archlab.pricing.units import count
from archlab.report.charts.lines import Axis, curves
from archlab.report.charts.marks import ChartRow
from archlab.report.run.watched import Watched, describe_spike
from archlab.study.formatting import four_digits, span
from archlab.training.run_files import parts
from archlab.training.spikes import REWOUND

_POINTS = 6000
"""Maximum number of points in one chart, over all lines."""

_FEWEST, _MOST = 40, 400
"""Minimum and maximum number of points on one line."""


class Drawn(NamedTuple):
    """A field of the training log that is drawn as a chart."""

    field: str
    title: str
    says: str
    axis: Axis
    has_marks: bool = False
    """Whether the chart marks spikes."""


LOSS = Drawn("loss", "Training loss", "Loss of each update.", Axis("nats per token", "nats per token"), has_marks=True)
OF_UPDATES = (
    LOSS,
    Drawn("grad_norm", "Gradient", "Norm of the whole gradient before clipping.",
          Axis("norm", "norm", is_logarithmic=True), has_marks=True),
    Drawn("lr", "Learning rate", "Learning rate of each update that was made.", Axis("learning rate", "rate")),
    Drawn("tokens_per_second", "Speed", "Training speed, without evaluation and checkpoints.",
          Axis("tokens/s", "tokens/s")),
    Drawn("balance_loss", "Balance loss", "Balance loss of the router, without its factor.", Axis("loss", "norm")),
    Drawn("router_z_loss", "Router z-loss", "Z-loss of the router, without its factor.", Axis("loss", "norm")),
    Drawn("largest_load", "Largest load", "Share of the tokens that the busiest expert receives.",
          Axis("share", "share")),
    Drawn("dead_experts", "Dead experts", "Experts that no token of the batch chose, in all layers together.",
          Axis("experts", "count")),
)  # fmt: skip
HELD_OUT = {
    "bits_per_byte": Axis("bits per byte on held-out text", "bits per byte"),
    "accuracy": Axis("share of right answers", "share"),
    "denoising_loss": Axis("nats per hidden token of held-out text", "nats per token"),
}


def held_out(runs: Sequence[Watched], *, second_half: bool = False) -> alt.LayerChart | None:
    """Return a chart of the evaluations over the whole training, or over its second half.

    Only runs with the same evaluation measure as the first run are drawn.
    """
    field = runs[0].measure
    axis = HELD_OUT[field]
    alike = [run for run in runs if run.measure == field]
    rows = {run.name: _points(run, run.evaluations, field, axis) for run in alike}
    return _drawn(runs, rows, axis, from_zero=not second_half, second_half=second_half, height=320)


def of_updates(runs: Sequence[Watched]) -> Iterator[tuple[Drawn, alt.LayerChart]]:
    """Yield a chart for each field that at least one run has logged.

    The steps of a run are divided into parts. A line connects the means of these parts, in a band from the lowest to
    the highest value of each part.
    """
    most = max(_FEWEST, min(_MOST, _POINTS // len(runs)))
    for drawn in OF_UPDATES:
        rows = {run.name: list(_parts(run, drawn, most)) for run in runs}
        marks = [mark for run in runs for mark in _marks(run, drawn.field)] if drawn.has_marks else []
        chart = _drawn(runs, rows, drawn.axis, marks, named_beside=False)
        if chart is not None:
            yield drawn, chart


def _drawn(
    runs: Sequence[Watched], rows: dict[str, list[ChartRow]], axis: Axis, marks: Sequence[ChartRow] = (), **options: Any
) -> alt.LayerChart | None:
    diverged = [run.name for run in runs if run.status == "diverged"]
    means = [row for name, run_rows in rows.items() if name not in diverged for row in run_rows]
    thin = [
        {**row, "seed": 0, "last": row is run_rows[-1]}
        for name, run_rows in rows.items()
        if name in diverged
        for row in run_rows
    ]
    return curves([run.name for run in runs], means, thin, axis, marks=marks, **options)


def _points(run: Watched, lines: Sequence[dict[str, Any]], field: str, axis: Axis) -> list[ChartRow]:
    return [_row(run, axis, line["tokens"], [line[field]], f"step {line['step']:,}") for line in lines]


def _parts(run: Watched, drawn: Drawn, most: int) -> Iterator[ChartRow]:
    lines = [line for line in run.updates if line.get(drawn.field, 0) > 0 or not drawn.axis.is_logarithmic]
    lines = [line for line in lines if drawn.field in line]
    for part in parts(lines, most):
        steps = span(f"{part[0]['step']:,}", f"{part[-1]['step']:,}")
        steps_text = f"step{'s' if len(part) > 1 else ''} {steps}"
        yield _row(run, drawn.axis, part[-1]["tokens"], [line[drawn.field] for line in part], steps_text)


def _row(run: Watched, axis: Axis, tokens: int, values: Sequence[float], where: str) -> ChartRow:
    mean = fmean(values)
    between = f", {axis.text(min(values))} to {axis.text(max(values))}" if len(values) > 1 else ""
    return {
        "arm": run.name,
        "tokens": tokens,
        "mean": four_digits(mean),
        "low": four_digits(min(values)),
        "high": four_digits(max(values)),
        "text": f"{axis.text(mean)} at {count(tokens)} tokens ({where}{between})",
    }


def _marks(run: Watched, field: str) -> Iterator[ChartRow]:
    """Yield a mark for each spike, at the value of the step with the spike.

    A step that was rolled back is no longer in the log. Its mark is at the step from which training continued.
    """
    line_by_step = {line["step"]: line for line in run.updates}
    for spike in run.spikes:
        line = line_by_step.get(spike["step"])
        if line is not None:
            yield {
                "arm": run.name, "tokens": line["tokens"], "mean": line[field],
                "text": f"{'rolled back, ' if REWOUND in spike else 'spike, '}{describe_spike(spike)}",
            }  # fmt: skip
