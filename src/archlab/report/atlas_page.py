"""The atlas as one HTML file that opens offline: the pictures, the table, the notes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archlab.atlas.cells import HEADINGS, MARKS, cells, remarks
from archlab.atlas.rows import Row
from archlab.files import write_atomic
from archlab.report import html
from archlab.report.atlas_charts import CHOICES, SHAPES, kinds, shape, shares
from archlab.report.palette import INKS, MODES, Mode, dressed


def write_atlas(rows: Sequence[Row], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(rows))
    return path


def render(rows: Sequence[Row]) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    return html.template("atlas.html.jinja").render(
        rows=rows,
        choices=[(choice, kinds(rows, choice)) for choice in CHOICES],
        shapes=SHAPES,
        colours=list(zip(*(INKS[mode].distinct for mode in MODES), strict=True)),
        headings=HEADINGS[1:],
        cells=lambda row: cells(row)[1:],
        marks=MARKS,
        remarks=remarks,
        specs={chart.name: html.fitted(shares(rows, chart)) for chart in CHOICES}
        | {chart.name: html.fitted(shape(rows, chart)) for chart in SHAPES},
        themes={mode: _theme(mode) for mode in MODES},
        style=html.inline("report.css"),
        own_style=html.inline("atlas.css"),
        script=html.inline("report.js"),
        vega=html.vega(),
    )


def _theme(mode: Mode) -> dict[str, Any]:
    ink = INKS[mode]
    theme = dressed(mode, ink.distinct)
    own = {"dots": {"color": ink.distinct[1]}, "median": {"color": ink.text}}
    return theme | {"style": theme["style"] | own}
