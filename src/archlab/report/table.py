"""A study's result as a table for the terminal."""

from rich.table import Table
from rich.text import Text

from archlab.cost.units import count
from archlab.report.rows import labels
from archlab.study.record import ArmSummary, StudySummary, Verdict
from archlab.study.wording import bits, interval, p_value, plural

_STYLES: dict[Verdict, str] = {"better": "bold blue", "worse": "bold yellow", "diverged": "bold red"}


def terminal_table(summary: StudySummary) -> Table:
    """Two lines per arm, at most 80 columns wide, legible without colours."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("arm", overflow="fold", max_width=16)
    table.add_column("params", justify="right", no_wrap=True)
    table.add_column("bits/byte\n± sd", justify="right", no_wrap=True)
    table.add_column("difference\n[95%]", justify="right", no_wrap=True)
    table.add_column("p Holm", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    for arm, label in zip(summary.arms, labels(summary).values(), strict=True):
        table.add_row(Text(label), *_cells(arm))
    return table


def _cells(arm: ArmSummary) -> list[Text]:
    c = arm.comparison
    level = "-" if arm.mean is None else bits(arm.mean)
    spread = "" if arm.deviation is None else f"±{bits(arm.deviation)}"
    difference = "" if c is None or c.difference is None else f"{bits(c.difference)}\n{interval(c.low, c.high)}"
    verdict = "reference" if c is None else c.verdict.replace(" ", "\n")
    if arm.divergences:
        verdict = f"{verdict if c else 'diverged'}\n{arm.divergences} of {plural(len(arm.bits_per_byte), 'seed')}"
    return [
        Text(count(arm.parameters)),
        Text(f"{level}\n{spread}".strip()),
        Text(difference.strip()),
        Text("" if c is None or c.p_holm is None else p_value(c.p_holm).replace(" ", "")),
        Text(verdict, style=_STYLES.get(c.verdict, "") if c else "dim"),
        Text("-" if arm.tokens_per_second is None else count(arm.tokens_per_second)),
    ]
