"""A study's result as a table for the terminal."""

from rich.table import Table
from rich.text import Text

from archlab.pricing.units import count
from archlab.report.study.arms import labels
from archlab.report.text_table import FIXED, fitted
from archlab.study.formatting import amount, difference, diverged_seeds, interval, p_value, verdict
from archlab.study.outcome_schema import Unit
from archlab.study.record import ArmSummary, Comparison, StudySummary, Verdict

STYLES: dict[Verdict, str] = {
    "better": "bold blue",
    "worse": "bold yellow",
    "differs": "bold magenta",
    "equivalent": "bold",
    "diverged": "bold red",
}
"""Of the terminal."""
_HEADINGS = ("arm", "params", "{} ± sd", "difference [interval]", "p Holm", "verdict", "tok/s")

_SHORT: dict[Unit, str] = {"bits per byte": "bits/byte", "nats per token": "nats/token"}


def terminal_table(summary: StudySummary, width: int) -> Table:
    """One line per arm where `width` columns are enough, else two or more; legible without colours."""
    named = zip(summary.arms, labels(summary).values(), strict=True)
    unit = summary.outcome.unit
    headings = [title.format(_SHORT.get(unit, unit)) for title in _HEADINGS]
    rows = [headings, *((label, *_cells(arm, unit)) for arm, label in named)]
    heading, *cells = fitted(rows, width - len(_HEADINGS) + 1)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title in heading:
        table.add_column(title, justify="left" if title in ("arm", "verdict") else "right", no_wrap=True)
    for arm, (*before, result, speed) in zip(summary.arms, cells, strict=True):
        style = "dim" if arm.comparison is None else STYLES.get(arm.comparison.verdict, "")
        table.add_row(*map(Text, before), Text(result, style=style), Text(speed))
    return table


def effect(c: Comparison, unit: Unit) -> str:
    """With its interval; empty where there is none."""
    if c.difference is None:
        return ""
    return f"{_whole(difference(c.difference, unit))} {_whole(interval(c.low, c.high, unit))}".strip()


def p_holm(c: Comparison) -> str:
    """Empty where nothing was tested."""
    return "" if c.p_holm is None else _whole(p_value(c.p_holm))


def _cells(arm: ArmSummary, unit: Unit) -> list[str]:
    """All but the label."""
    c = arm.comparison
    level = "-" if arm.mean is None else amount(arm.mean, unit)
    spread = "" if arm.deviation is None else f"±{amount(arm.deviation, unit)}"
    result = verdict(arm)
    if arm.diverged:
        result = f"{result if c else 'diverged'} {_whole(diverged_seeds(arm))}"
    return [
        count(arm.parameters),
        f"{level} {spread}".strip(),
        effect(c, unit) if c else "",
        p_holm(c) if c else "",
        result,
        "-" if arm.tokens_per_second is None else count(arm.tokens_per_second),
    ]


def _whole(text: str) -> str:
    """The text with spaces at which no line is broken."""
    return text.replace(" ", FIXED)
