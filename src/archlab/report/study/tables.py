"""What a study found beside its arms, as small tables for the terminal: factors, sizes, a sweep."""

from collections.abc import Collection, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from archlab.pricing.units import count
from archlab.report.charts.marks import Row
from archlab.report.study.grids import sweep_rows
from archlab.report.study.table import STYLES, effect, p_holm
from archlab.report.text_table import FIXED, fitted
from archlab.study.formatting import amount, difference
from archlab.study.outcome_schema import Unit
from archlab.study.record import Comparison, StudySummary

_FACTORS = ("factor", "minus", "difference [interval]", "p Holm", "verdict")


def study_tables(summary: StudySummary, width: int) -> Iterator[Table]:
    """Those that the study has."""
    if summary.contrasts:
        yield factor_table(summary, width)
    if summary.sizes:
        yield size_table(summary, width)
    if summary.sweep:
        yield sweep_table(summary, width)


def factor_table(summary: StudySummary, width: int) -> Table:
    """One line per contrast of crossed factors."""
    compared = [(contrast.name, contrast.comparison) for contrast in summary.contrasts if contrast.comparison]
    unit = summary.outcome.unit
    rows = [(name, c.reference, effect(c, unit), p_holm(c), c.verdict) for name, c in compared]
    styles = [STYLES.get(c.verdict, "") for _, c in compared]
    return _table(_FACTORS, rows, width, left=("factor", "minus", "verdict"), styles=styles)


def size_table(summary: StudySummary, width: int) -> Table:
    """One line per arm of a ladder of sizes: its difference at each size, by how much that changes, and the trend."""
    comparisons = {arm.name: arm.comparison for arm in summary.arms}
    unit = summary.outcome.unit
    headings = ("difference", *map(count, summary.asked_sizes), "change [interval]", "p Holm", "trend")
    rows = [
        (
            f"{trend.label} minus {trend.reference}",
            *(_at_size(comparisons[name], unit) for name in trend.arms),
            *((effect(c, unit), p_holm(c)) if (c := trend.comparison) else ("", "")),
            trend.trend,
        )
        for trend in summary.sizes
    ]
    return _table(headings, rows, width, left=("difference", "trend"))


def sweep_table(summary: StudySummary, width: int) -> Table:
    """One line per arm: the mean loss at each value that was swept, the best one in brackets."""
    field, rows = summary.sweep[0].field, sweep_rows(summary)
    values = sorted({row["value"] for row in rows})
    cells = {(row["arm"], row["value"]): _swept(row) for row in rows}
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    lines = [(arm, *(cells.get((arm, value), "") for value in values)) for arm in arms]
    return _table((field, *(f"{value:g}" for value in values)), lines, width, left=(field,))


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    left: Collection[str],
    styles: Sequence[str] = (),
) -> Table:
    """`styles`: of the last cells of the rows."""
    heading, *cells = fitted([headings, *rows], width - len(headings) + 1)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title, plain in zip(heading, headings, strict=True):
        table.add_column(title, justify="left" if plain in left else "right", no_wrap=True)
    for (*before, last), style in zip(cells, styles or [""] * len(rows), strict=True):
        table.add_row(*map(Text, before), Text(last, style=style))
    return table


def _at_size(c: Comparison | None, unit: Unit) -> str:
    if c is None:
        return ""
    return c.verdict if c.difference is None else difference(c.difference, unit)


def _swept(row: Row) -> str:
    if row["mean"] is None:
        return row["diverged"]
    text = amount(row["mean"], "bits per byte")
    return f"[{text}]" if row["mark"] else f"{text}{FIXED}"
