"""Page about runs, in one HTML file that opens offline. It shows their status, curves and probes, and how their configs
differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from archlab.atlas.inspect import choices
from archlab.config.core.yaml_text import to_yaml, to_yaml_line
from archlab.config.identity import flatten, resolved
from archlab.files import write_page
from archlab.pricing.params import parameters
from archlab.pricing.units import count, plural, seconds
from archlab.report.charts.palette import MODES, colors
from archlab.report.html import render_page
from archlab.report.probe.charts import OVER_TRAINING, Line, ProbePicture, depth_pictures, over_steps, training_pictures
from archlab.report.run.curves import HELD_OUT, Drawn, held_out, of_updates
from archlab.report.run.watched import Watched
from archlab.training.measures import OF_LAYERS, ProbeValues, measured
from archlab.training.run_files import probes_of
from archlab.training.summary import PROBES

_MISSING = "-"


def write_runs(runs: Sequence[Watched], path: Path, refresh_seconds: int | None = None) -> Path:
    """Write the page, creating missing parent folders, and return its path.

    `refresh_seconds` is the interval at which the browser reloads the page.
    """
    return write_page(path, render(runs, refresh_seconds))


def render(runs: Sequence[Watched], refresh_seconds: int | None = None) -> str:
    charts, measured_fields = charts_of(runs)
    depth, time = depth_probes(runs), time_probes(runs)
    charts |= {probe.name: probe.chart for probe in (*depth, *time)}
    names = [run.name for run in runs]
    return render_page(
        "run",
        charts,
        {mode: colors(len(runs), mode) for mode in MODES},
        runs=runs,
        refresh_seconds=refresh_seconds,
        columns=[_UNITS.get(column, column) for column in COLUMNS] if runs[0].measure == "bits_per_byte" else COLUMNS,
        rows=run_rows(runs, longest=200),
        measured=measured_fields,
        depth_probes=depth,
        time_probes=time,
        differences=differing([flatten(resolved(run.config)) for run in runs]),
        environments=differing([flatten(run.environment) for run in runs], all_fields=True),
        configs=[to_yaml(resolved(run.config)) for run in runs],
        marked=any(run.spikes for run in runs),
        title=title(runs),
        answers=[answer(run) for run in runs],
        facts=facts(runs),
        noted=[(run.name, note) for run in runs for note in run.notes()],
        names=names,
    )


def charts_of(runs: Sequence[Watched]) -> tuple[dict[str, alt.LayerChart | None], list[Drawn]]:
    """Map the name of each place on the page to its chart, or to None if there is nothing to draw. Also return the
    fields of the training log that are drawn."""
    drawn = list(of_updates(runs))
    charts = {
        "held-out": held_out(runs),
        "held-out-end": held_out(runs, second_half=True),
        **{f"updates-{quantity.field}": chart for quantity, chart in drawn},
    }
    return charts, [quantity for quantity, _ in drawn]


def title(runs: Sequence[Watched]) -> str:
    """Return the name, config, size and answer of a run, or the names of several runs."""
    names = [run.name for run in runs]
    if len(runs) == 1:
        (run,), model = runs, runs[0].config.model
        size = f"{plural(model.n_layers, 'layer')} of {model.d_model:,}, {count(parameters(model).total)} parameters"
        return ", ".join([f"{run.name}: {size}", *([] if run.held_out is None else [_held_out(run, run.held_out)])])
    return f"{len(names)} runs: {', '.join(names)}" if len(names) <= _MOST_NAMES else f"{len(names)} runs"


_MOST_NAMES = 3
"""Number of names that fit in a title."""


def answer(run: Watched) -> str:
    """Return a sentence that says how good the model is, and how far its training has come."""
    tokens = f"{count(run.steps * run.settings.batch_tokens)} of {count(run.settings.tokens)} training tokens"
    if run.held_out is None:
        return f"{run.status} after {tokens}."
    return f"{_held_out(run, run.held_out)} on held-out data after {tokens} ({run.status})."


def _held_out(run: Watched, score: float) -> str:
    """Return the score on held-out data with its unit."""
    value = HELD_OUT[run.measure]
    return f"{value.text(score)} {'right answers' if value.unit == 'share' else value.unit}"


def facts(runs: Sequence[Watched]) -> list[tuple[str, str]]:
    """Return (name, value) of each fact about the models and their training that is the same for all runs."""
    per_run = [_facts(run) for run in runs]
    names = dict.fromkeys(name for run_facts in per_run for name in run_facts)
    values = {name: {run_facts.get(name) for run_facts in per_run} for name in names}
    return [(name, value) for name, of_runs in values.items() if len(of_runs) == 1 and (value := of_runs.pop())]


def _facts(run: Watched) -> dict[str, str]:
    settings, chosen = run.settings, choices(run.config.model)
    return {
        "layers": f"{run.config.model.n_layers}, {run.config.model.d_model:,} wide",
        **{
            name: chosen[name] for name in ("norm", "attention", "recurrent mixer", "MLP", "position") if name in chosen
        },
        "tokens per update": f"{settings.batch_tokens:,}",
        "highest learning rate": f"{settings.lr:g}",
    }


COLUMNS = ("run", "status", "steps", "held out", "loss", "tok/s", "spikes", "left")


_UNITS = {"held out": "held out, bits per byte", "loss": "loss, nats per token"}
"""Headings on the page of columns whose values have no unit."""

_LONGEST = 22
"""Maximum number of characters in a name. It leaves room for the other columns in a line of 80 characters."""


def run_rows(runs: Sequence[Watched], longest: int = _LONGEST) -> list[tuple[str, ...]]:
    """Return a row for each run, with one cell for each of COLUMNS. A name longer than `longest` is shortened at the
    beginning."""
    return [
        (
            run.name if len(run.name) <= longest else f"…{run.name[1 - longest :]}",
            run.status,
            f"{run.steps:,}/{run.settings.steps:,}",
            _MISSING if run.held_out is None else HELD_OUT[run.measure].text(run.held_out),
            f"{run.updates[-1]['loss']:.3f}" if run.updates else _MISSING,
            _MISSING if run.tokens_per_second is None else count(run.tokens_per_second),
            str(len(run.spikes)),
            _MISSING if run.seconds_left is None else seconds(run.seconds_left),
        )
        for run in runs
    ]


def standing(runs: Sequence[Watched]) -> list[dict[str, Any]]:
    """Return the status of each run for the JSON output. Numbers are not rounded."""
    return [
        {
            "run": str(run.path),
            "status": run.status,
            "step": run.steps,
            "steps": run.settings.steps,
            run.measure: run.held_out,
            "loss": run.updates[-1]["loss"] if run.updates else None,
            "tokens_per_second": run.tokens_per_second,
            "spikes": len(run.spikes),
            "seconds_left": run.seconds_left,
        }
        for run in runs
    ]


def differing(values: Sequence[dict[str, Any]], *, all_fields: bool = False) -> list[tuple[str, ...]]:
    """Return one row per field: its name, and its value in each run. By default, only fields whose values differ are
    included."""
    fields = list(dict.fromkeys(field for run_values in values for field in run_values))
    rows = [
        (field, [to_yaml_line(run_values[field]) if field in run_values else _MISSING for run_values in values])
        for field in fields
    ]
    return [(field, *cells) for field, cells in rows if all_fields or len(set(cells)) > 1]


def depth_probes(runs: Sequence[Watched]) -> list[ProbePicture]:
    """Return charts over the layers, from the latest probe of each run. The result is empty if nothing was probed."""
    return depth_pictures(
        {run.name: next((line[PROBES] for line in reversed(run.metrics) if PROBES in line), {}) for run in runs}
    )


def time_probes(runs: Sequence[Watched]) -> list[ProbePicture]:
    """Return charts of probes over the course of training.

    A single run has one line per layer. If there are several runs, each has one line, and the values of its layers are
    combined into one.
    """
    if len(runs) == 1:
        rows = [{"step": line["step"], **line[PROBES]} for line in runs[0].metrics if PROBES in line]
        return [
            ProbePicture(f"time-{name}", measure.title, measure.says, over_steps(rows, name, measure))
            for name, measure in measured(rows).items()
        ]
    return training_pictures({run.name: _lines(probes_of(run.metrics)) for run in runs})


def _lines(probes: Mapping[int, ProbeValues]) -> dict[str, Line]:
    names = {name for probe in probes.values() for name in probe if name in OVER_TRAINING}
    return {name: _line(probes, name) for name in names}


def _line(probes: Mapping[int, ProbeValues], name: str) -> Line:
    value_by_tokens = {tokens: probe[name] for tokens, probe in probes.items() if name in probe}
    return [*value_by_tokens], [
        OF_LAYERS[name].over_layers(value) if name in OF_LAYERS else value for value in value_by_tokens.values()
    ]
