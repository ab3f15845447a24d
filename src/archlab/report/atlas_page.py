"""The atlas as one HTML file that opens offline: the pictures, the table, the notes."""

from collections.abc import Sequence
from pathlib import Path

from archlab.atlas.models import AtlasRow
from archlab.atlas.table import FIGURES, HEADINGS, LEGEND, LEGEND_OF_MORE, MARKS, MORE, cells, more, remarks
from archlab.files import write_page
from archlab.report import html
from archlab.report.atlas import CHOICES, SHAPES, kinds, shape, shares
from archlab.report.atlas_sizes import KINDS, by_size
from archlab.report.charts.palette import MODES, PALETTES, dots_theme


def write_atlas(rows: Sequence[AtlasRow], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render(rows))


def render(rows: Sequence[AtlasRow]) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    choices = [(choice, found) for choice in CHOICES if (found := kinds(rows, choice))]
    shapes = [drawn for drawn in SHAPES if any(row.size and drawn.of(row) for row in rows)]
    return html.template("atlas.html.jinja").render(
        rows=rows,
        choices=choices,
        shapes=shapes,
        mlps=KINDS,
        colours=list(zip(*(PALETTES[mode].distinct for mode in MODES), strict=True)),
        headings=(*HEADINGS[1:], *MORE),
        figures=FIGURES,
        legend=" ".join((*LEGEND, *LEGEND_OF_MORE)),
        cells=lambda row: (*cells(row)[1:], *more(row)),
        marks=MARKS,
        remarks=remarks,
        specs={chart.name: html.full_width(shares(rows, chart)) for chart, _ in choices}
        | {chart.name: html.full_width(shape(rows, chart)) for chart in shapes}
        | {f"{chart.name}-by-size": html.full_width(by_size(rows, chart)) for chart in shapes},
        themes={mode: dots_theme(mode) for mode in MODES},
    )
