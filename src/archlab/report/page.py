"""The report of a study: one HTML file that opens offline, and a picture of its charts."""

from pathlib import Path
from typing import Any

from archlab.config.yaml_text import to_yaml, to_yaml_line
from archlab.cost.units import binary, count, seconds
from archlab.files import write_atomic
from archlab.report import charts, html, palette
from archlab.report.picture import picture
from archlab.report.rows import labels
from archlab.report.size_chart import over_sizes
from archlab.study.formatting import amount, diverged, interval, p_value, span, verdict
from archlab.study.record import StudySummary


def write_page(summary: StudySummary, folder: Path) -> Path:
    """Write `report.html` into the folder, whole or not at all; its path."""
    page = folder / "report.html"
    write_atomic(page, render(summary))
    return page


def write_picture(summary: StudySummary, folder: Path) -> None:
    """Write `report.png` into the folder, whole or not at all; UserError where it cannot be drawn."""
    write_atomic(folder / "report.png", picture(summary))


def render(summary: StudySummary) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    template = html.template("report.html.jinja")
    functions = (p_value, span, seconds, verdict, diverged, binary, count, to_yaml)
    template.globals.update(
        {function.__name__: function for function in functions},
        value=to_yaml_line,
        amount=lambda value: amount(value, summary.outcome.unit),
        interval=lambda low, high: interval(low, high, summary.outcome.unit),
    )
    return template.render(
        s=summary,
        labels=labels(summary),
        colours=list(zip(*(palette.arm_colours(summary, mode) for mode in palette.MODES), strict=True)),
        specs=_specs(summary),
        themes={mode: palette.study_theme(summary, mode) for mode in palette.MODES},
    )


def _specs(summary: StudySummary) -> dict[str, dict[str, Any]]:
    """Chart name -> Vega-Lite."""
    drawn = {
        "levels": charts.levels(summary),
        "differences": charts.differences(summary),
        "curves": charts.curves(summary),
        "sizes": over_sizes(summary),
    }
    return {name: html.full_width(chart) for name, chart in drawn.items() if chart is not None}
