"""Results of a study for the terminal: a table of its arms, and small tables of factors, sizes and a sweep."""

from collections.abc import Collection, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archlab.pricing.units import count
from archlab.report.charts.marks import ChartRow
from archlab.report.study.arms import labels
from archlab.report.study.grids import sweep_rows
from archlab.report.text_table import FIXED, fitted, show_table
from archlab.report.text_table import Table as Cells
from archlab.study.formatting import amount, contrast_text, difference, diverged_seeds, interval, p_value, verdict
from archlab.study.outcomes.schema import Unit
from archlab.study.record import ArmSummary, Comparison, StudySummary, Verdict

_STYLES: dict[Verdict, str] = {
    "better": "bold blue",
    "worse": "bold yellow",
    "differs": "bold magenta",
    "equivalent": "bold",
    "diverged": "bold red",
}
_HEADINGS = ("arm", "params", "{} ± sd", "difference [interval]", "p Holm", "verdict", "tok/s")

_SHORT: dict[Unit, str] = {"bits per byte": "bits/byte", "nats per token": "nats/token"}


def print_study(out: Console, summary: StudySummary) -> None:
    """Print the tables of a study, its answer, and its warnings."""
    show_table(out, terminal_table(summary, out.width))
    for table in study_tables(summary, out.width):
        out.print()
        show_table(out, table)
    out.print()
    out.print(summary.answer)
    for warning in summary.warnings:
        out.print(f"note: {warning}")


def terminal_table(summary: StudySummary, width: int) -> Table:
    """Return the table of the arms. The table is legible without colors.

    Each arm takes one line, or more if `width` columns are too few.
    """
    headings, rows = arm_table(summary)
    styles = ["dim" if (c := arm.comparison) is None else _STYLES.get(c.verdict, "") for arm in summary.arms]
    return _table(headings, rows, width, left=("arm", "verdict"), styles=styles, styled=-2)


def arm_table(summary: StudySummary) -> Cells:
    """Return the headings of the table of the arms, and one row per arm."""
    unit = summary.outcome.unit
    headings = [title.format(_SHORT.get(unit, unit)) for title in _HEADINGS]
    rows = [(label, *_cells(arm, unit)) for arm, label in zip(summary.arms, labels(summary).values(), strict=True)]
    return Cells(headings, rows)


def _cells(arm: ArmSummary, unit: Unit) -> list[str]:
    c = arm.comparison
    level = "-" if arm.mean is None else amount(arm.mean, unit)
    spread = "" if arm.deviation is None else f"±{amount(arm.deviation, unit)}"
    result = verdict(arm)
    if arm.diverged:
        result = f"{result if c else 'diverged'} {_whole(diverged_seeds(arm))}"
    return [
        count(arm.parameters),
        f"{level} {spread}".strip(),
        _effect(c, unit) if c else "",
        _p_holm(c) if c else "",
        result,
        "-" if arm.tokens_per_second is None else count(arm.tokens_per_second),
    ]


def study_tables(summary: StudySummary, width: int) -> Iterator[Table]:
    """Yield the tables of factors, sizes and the sweep, if the study has them."""
    if summary.contrasts:
        yield factor_table(summary, width)
    if summary.sizes:
        yield size_table(summary, width)
    if summary.sweep:
        yield sweep_table(summary, width)


def factor_table(summary: StudySummary, width: int) -> Table:
    """Return a table with one row per contrast of crossed factors."""
    compared = [(contrast.name, contrast.comparison) for contrast in summary.contrasts if contrast.comparison]
    unit = summary.outcome.unit
    headings = ("factor", "minus", "difference [interval]", "p Holm", "verdict")
    rows = [
        (contrast_text(name), contrast_text(c.reference), _effect(c, unit), _p_holm(c), c.verdict)
        for name, c in compared
    ]
    styles = [_STYLES.get(c.verdict, "") for _, c in compared]
    return _table(headings, rows, width, left=("factor", "minus", "verdict"), styles=styles)


def size_table(summary: StudySummary, width: int) -> Table:
    """Return a table with one row per arm: its difference at each model size, the change of the difference, and the
    trend."""
    comparisons = {arm.name: arm.comparison for arm in summary.arms}
    unit = summary.outcome.unit
    headings = ("difference", *map(count, summary.asked_sizes), "change [interval]", "p Holm", "trend")
    rows = [
        (
            f"{trend.label} minus {trend.reference}",
            *(_at_size(comparisons[name], unit) for name in trend.arms),
            *((_effect(c, unit), _p_holm(c)) if (c := trend.comparison) else ("", "")),
            trend.trend,
        )
        for trend in summary.sizes
    ]
    return _table(headings, rows, width, left=("difference", "trend"))


def sweep_table(summary: StudySummary, width: int) -> Table:
    """Return a table with one row per arm: the mean loss at each swept value, with the best loss in brackets."""
    field, rows = summary.sweep[0].field, sweep_rows(summary)
    values = sorted({row["value"] for row in rows})
    cells = {(row["arm"], row["value"]): _swept(row) for row in rows}
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    lines = [(arm, *(cells.get((arm, value), "") for value in values)) for arm in arms]
    return _table((field, *(f"{value:g}" for value in values)), lines, width, left=(field,))


def _at_size(c: Comparison | None, unit: Unit) -> str:
    if c is None:
        return ""
    return c.verdict if c.difference is None else difference(c.difference, unit)


def _swept(row: ChartRow) -> str:
    if row["mean"] is None:
        return row["diverged"]
    text = amount(row["mean"], "bits per byte")
    return f"[{text}]" if row["mark"] else f"{text}{FIXED}"


def _effect(c: Comparison, unit: Unit) -> str:
    if c.difference is None:
        return ""
    return f"{_whole(difference(c.difference, unit))} {_whole(interval(c.low, c.high, unit))}".strip()


def _p_holm(c: Comparison) -> str:
    return "" if c.p_holm is None else _whole(p_value(c.p_holm))


def _whole(text: str) -> str:
    return text.replace(" ", FIXED)


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    left: Collection[str],
    styles: Sequence[str] = (),
    styled: int = -1,
) -> Table:
    heading, *cells = fitted([headings, *rows], width - len(headings) + 1)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title, plain in zip(heading, headings, strict=True):
        table.add_column(title, justify="left" if plain in left else "right", no_wrap=True)
    for row, style in zip(cells, styles or [""] * len(rows), strict=True):
        texts = [Text(cell) for cell in row]
        texts[styled].style = style
        table.add_row(*texts)
    return table
