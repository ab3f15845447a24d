"""A study's result as a table for the terminal."""

from rich.table import Table
from rich.text import Text

from archlab.cost.units import count
from archlab.report.columns import FIXED, fitted
from archlab.report.rows import labels
from archlab.study.formatting import bits, diverged_seeds, interval, p_value, verdict
from archlab.study.record import ArmSummary, StudySummary, Verdict

_STYLES: dict[Verdict, str] = {
    "better": "bold blue",
    "worse": "bold yellow",
    "differs": "bold magenta",
    "equivalent": "bold",
    "diverged": "bold red",
}
_HEADINGS = ("arm", "params", "bits/byte ± sd", "difference [interval]", "p Holm", "verdict", "tok/s")


def terminal_table(summary: StudySummary, width: int) -> Table:
    """One line per arm where `width` columns are enough, else two or more; legible without colours."""
    named = zip(summary.arms, labels(summary).values(), strict=True)
    rows = [_HEADINGS, *((label, *_cells(arm)) for arm, label in named)]
    heading, *cells = fitted(rows, width - len(_HEADINGS) + 1)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title in heading:
        table.add_column(title, justify="left" if title in ("arm", "verdict") else "right", no_wrap=True)
    for arm, (*before, result, speed) in zip(summary.arms, cells, strict=True):
        style = "dim" if arm.comparison is None else _STYLES.get(arm.comparison.verdict, "")
        table.add_row(*map(Text, before), Text(result, style=style), Text(speed))
    return table


def _cells(arm: ArmSummary) -> list[str]:
    """All but the label."""
    c = arm.comparison
    level = "-" if arm.mean is None else bits(arm.mean)
    spread = "" if arm.deviation is None else f"±{bits(arm.deviation)}"
    difference = "" if c is None or c.difference is None else f"{bits(c.difference)} {_whole(interval(c.low, c.high))}"
    result = verdict(arm)
    if arm.divergences:
        result = f"{result if c else 'diverged'} {_whole(diverged_seeds(arm))}"
    return [
        count(arm.parameters),
        f"{level} {spread}".strip(),
        difference.strip(),
        "" if c is None or c.p_holm is None else _whole(p_value(c.p_holm)),
        result,
        "-" if arm.tokens_per_second is None else count(arm.tokens_per_second),
    ]


def _whole(text: str) -> str:
    """The text with spaces at which no line is broken."""
    return text.replace(" ", FIXED)
