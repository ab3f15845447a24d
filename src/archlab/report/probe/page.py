"""What probes found, as one HTML file that opens offline: pictures over depth, over a training, and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from archlab.files import write_page
from archlab.infer.probe import Start
from archlab.pricing.units import count
from archlab.report import html
from archlab.report.charts.palette import MODES, PALETTES, dots_theme
from archlab.report.cost.tables import Table
from archlab.report.probe.charts import over_depth, over_steps, rope_products
from archlab.report.probe.measures import Row, measured


def write_probes(
    starts: Mapping[str, Start], trained: Mapping[str, Sequence[Row]], tables: Sequence[Table], path: Path
) -> Path:
    """Write the page, and the folders above it; its path. `trained`: the probes of runs, by name."""
    return write_page(path, render(starts, trained, tables))


def render(starts: Mapping[str, Start], trained: Mapping[str, Sequence[Row]], tables: Sequence[Table]) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    rows = {name: start.probed.as_json() for name, start in starts.items()}
    turned = {name: [(rope.distances, rope.products) for rope in start.ropes] for name, start in starts.items()}
    measures = measured(rows.values())
    charts = {name: over_depth(rows, name, measure) for name, measure in measures.items()}
    if any(turned.values()):
        charts["rope"] = rope_products(turned)
    runs = [(name, f"run-{i}-", measured(of_run)) for i, (name, of_run) in enumerate(trained.items())]
    for name, prefix, of_run in runs:
        charts |= {f"{prefix}{key}": over_steps(trained[name], key, measure) for key, measure in of_run.items()}
    return html.template("probe.html.jinja").render(
        names=list(starts),
        sizes=[count(start.parameters) for start in starts.values()],
        first=next(iter(starts.values())),
        measures=measures,
        runs=runs,
        tables=tables,
        colours=list(zip(*(PALETTES[mode].distinct for mode in MODES), strict=True)),
        specs={name: html.full_width(chart) for name, chart in charts.items()},
        themes={mode: dots_theme(mode) for mode in MODES},
    )
