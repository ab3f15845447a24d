"""The ledger as one HTML file that opens offline: all claims at a glance, what they predict beside what was found,
each in full, and errors in circulation."""

from collections.abc import Sequence
from pathlib import Path

from archlab.evidence.claims import cited, mistakes, sources
from archlab.evidence.ledger import LedgerEntry
from archlab.files import write_page
from archlab.report import html
from archlab.report.charts.palette import MODES, PALETTES, vega_theme
from archlab.report.ledger import words as ledger_words
from archlab.report.ledger.chart import predictions
from archlab.report.ledger.rows import panels


def write_ledger(entries: Sequence[LedgerEntry], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render(entries))


def render(entries: Sequence[LedgerEntry], guide: str | None = None) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere. `guide`: the first page
    of its site, if any."""
    drawn = panels(entries)
    by_year = sorted(sources().values(), key=lambda source: (source.year, source.authors))
    return html.template("ledger.html.jinja").render(
        entries=entries,
        words=ledger_words,
        cited=cited,
        mistakes=mistakes(),
        sources=by_year,
        guide=guide,
        panels=drawn,
        specs={f"predictions-{i}": html.full_width(predictions(panel)) for i, panel in enumerate(drawn)},
        themes={mode: vega_theme(mode, PALETTES[mode].distinct) for mode in MODES},
    )
