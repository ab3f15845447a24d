"""The ledger's predictions as rows of pictures: one picture per outcome, for different units share no axis."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from archlab.evidence.ledger import LedgerEntry
from archlab.evidence.verdicts import JudgedExpectation
from archlab.report.charts.marks import Row
from archlab.study.formatting import amount, difference, interval
from archlab.study.outcome_schema import Better, Unit
from archlab.study.record import Comparison, Heading
from archlab.study.study_file import AS_IT_STANDS

_RELATIVE: dict[Unit, str] = {"tokens/s": "speed", "bytes": "memory"}
"""Units of which only the share of the reference's mean says something: what all outcomes of that unit are about."""


class Panel(NamedTuple):
    """One picture."""

    outcome: Heading
    is_relative: bool
    """Whether differences are shares of the reference's mean."""
    rows: list[Row]


def panels(entries: Sequence[LedgerEntry]) -> list[Panel]:
    """Of all that was run, at every scale; the picture with most rows first."""
    found: dict[tuple[str, Unit, Better], Panel] = {}
    for entry in entries:
        for one in entry.found:
            for judged in one.judged:
                if judged.outcome and judged.comparison:
                    panel = _panel(judged.outcome)
                    key = panel.outcome.title, panel.outcome.unit, panel.outcome.better
                    row = _row(entry, one.scale, judged, judged.outcome, judged.comparison)
                    found.setdefault(key, panel).rows.append(row)
    return sorted(found.values(), key=lambda panel: -len(panel.rows))


def _panel(outcome: Heading) -> Panel:
    about = _RELATIVE.get(outcome.unit)
    return Panel(outcome.model_copy(update={"title": about, "unit": "share"}) if about else outcome, bool(about), [])


def _row(entry: LedgerEntry, scale: str, judged: JudgedExpectation, outcome: Heading, found: Comparison) -> Row:
    is_relative = outcome.unit in _RELATIVE
    unit: Unit = "share" if is_relative else outcome.unit
    per = judged.share / found.difference if is_relative and judged.share and found.difference else 1.0
    value, low, high, margin = (
        None if end is None else per * end for end in (found.difference, *judged.interval, found.margin)
    )
    if value is None or (is_relative and judged.share is None):
        value, low, high, text = None, None, None, found.verdict
    else:
        text = f"{(amount if is_relative else difference)(value, unit)} {interval(low, high, unit)}".strip()
    what = [
        judged.label,
        *([outcome.name.replace("_", " ")] if is_relative else []),
        *([] if scale == AS_IT_STANDS else [scale]),
    ]
    return {
        "arm": f"{entry.claim.number}. {entry.claim.name}: {', '.join(what)} (said: {judged.expected.verdict})",
        "against": judged.against,
        "value": value,
        "low": low,
        "high": high,
        "below": None if margin is None else -margin,
        "above": margin,
        "found": judged.found,
        "text": text,
    }


def ends(rows: Sequence[Row]) -> Iterator[float]:
    """All that the axis must reach: zero, values, intervals and margins."""
    yield 0.0
    every = (row[end] for row in rows for end in ("value", "low", "high", "below", "above"))
    yield from (end for end in every if end is not None)
