"""Pictures of runs, a line for each over its training tokens."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import altair as alt

from archlab.pricing.units import count
from archlab.report.charts.lines import Axis, curves
from archlab.report.charts.marks import ChartRow
from archlab.report.run.watched import Watched, spiked
from archlab.study.formatting import four_digits, span
from archlab.training.spikes import REWOUND

_POINTS = 6000
"""On all lines of a picture."""

_FEWEST, _MOST = 40, 400
"""Of one line."""


class Drawn(NamedTuple):
    """A field of the metrics in a picture."""

    field: str
    title: str
    says: str
    axis: Axis
    has_marks: bool = False
    """Whether spikes are marked."""


LOSS = Drawn("loss", "Loss in training", "Of the updates.", Axis("nats per token", "nats per token"), has_marks=True)
OF_UPDATES = (
    LOSS,
    Drawn(
        "grad_norm", "Gradient", "Norm of the whole, before clipping.", Axis("norm", "norm", is_logarithmic=True),
        has_marks=True,
    ),
    Drawn("lr", "Learning rate", "Of the updates that were made.", Axis("learning rate", "rate")),
    Drawn("tokens_per_second", "Speed", "Evaluation and checkpoints left out.", Axis("tokens/s", "tokens/s")),
    Drawn("balance_loss", "Balance loss", "Of the router, without its factor.", Axis("loss", "norm")),
    Drawn("router_z_loss", "Router's z-loss", "Without its factor.", Axis("loss", "norm")),
    Drawn("largest_load", "Largest load", "Share of the tokens that the busiest expert has.", Axis("share", "share")),
    Drawn("dead_experts", "Dead experts", "Chosen by no token of the batch, in all layers.", Axis("experts", "count")),
)  # fmt: skip
HELD_OUT = {
    "bits_per_byte": Axis("bits per byte on held-out text", "bits per byte"),
    "accuracy": Axis("share of right answers", "share"),
}


def held_out(runs: Sequence[Watched], *, second_half: bool = False) -> alt.LayerChart | None:
    """The evaluations, from the one before the first update on, or from half of the training on; of runs that are
    evaluated as the first one is."""
    field = runs[0].measure
    axis = HELD_OUT[field]
    alike = [run for run in runs if run.measure == field]
    rows = {run.name: _points(run, run.evaluations, field, axis) for run in alike}
    return _drawn(runs, rows, axis, from_zero=not second_half, second_half=second_half, height=320)


def of_updates(runs: Sequence[Watched]) -> Iterator[tuple[Drawn, alt.LayerChart]]:
    """Those that any of the runs has; a line is the mean over parts of a run, in a band from the lowest to the
    highest."""
    most = max(_FEWEST, min(_MOST, _POINTS // len(runs)))
    for drawn in OF_UPDATES:
        rows = {run.name: list(_parts(run, drawn, most)) for run in runs}
        marks = [mark for run in runs for mark in _marks(run, drawn.field)] if drawn.has_marks else []
        chart = _drawn(runs, rows, drawn.axis, marks, named_beside=False)
        if chart is not None:
            yield drawn, chart


def _drawn(
    runs: Sequence[Watched], rows: dict[str, list[ChartRow]], axis: Axis, marks: Sequence[ChartRow] = (), **how: Any
) -> alt.LayerChart | None:
    gone = [run.name for run in runs if run.status == "diverged"]
    means = [row for name, of_run in rows.items() if name not in gone for row in of_run]
    thin = [
        {**row, "seed": 0, "last": row is of_run[-1]} for name, of_run in rows.items() if name in gone for row in of_run
    ]
    return curves([run.name for run in runs], means, thin, axis, marks=marks, **how)


def _points(run: Watched, lines: Sequence[dict[str, Any]], field: str, axis: Axis) -> list[ChartRow]:
    return [_row(run, axis, line["tokens"], [line[field]], f"step {line['step']:,}") for line in lines]


def _parts(run: Watched, drawn: Drawn, most: int) -> Iterator[ChartRow]:
    """The updates in parts as equal as can be."""
    lines = [line for line in run.updates if line.get(drawn.field, 0) > 0 or not drawn.axis.is_logarithmic]
    lines = [line for line in lines if drawn.field in line]
    n = min(most, len(lines))
    for i in range(n):
        part = lines[i * len(lines) // n : (i + 1) * len(lines) // n]
        steps = span(f"{part[0]['step']:,}", f"{part[-1]['step']:,}")
        what = f"step{'s' if len(part) > 1 else ''} {steps}"
        yield _row(run, drawn.axis, part[-1]["tokens"], [line[drawn.field] for line in part], what)


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
    """Steps that jumped, at the value that they had; those that were gone back from are no longer in the log, and stand
    at the step after which the training went on."""
    at = {line["step"]: line for line in run.updates}
    for spike in run.spikes:
        line = at.get(spike["step"])
        if line is not None:
            yield {
                "arm": run.name, "tokens": line["tokens"], "mean": line[field],
                "text": f"{'a way back, ' if REWOUND in spike else 'a spike, '}{spiked(spike)}",
            }  # fmt: skip
