"""Page of the ledger, in one HTML file that opens offline.

It shows an overview of all claims, their predictions beside the results, each claim in full, and common errors.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import copysign, expm1, log1p
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import altair as alt

from archlab.evidence.claims import Claim, cited, mistakes, sources
from archlab.evidence.ledger import LedgerEntry
from archlab.evidence.verdicts import ClaimAtScale, JudgedPrediction
from archlab.files import write_page
from archlab.report.charts.axes import axis, axis_title, both_sides, padded
from archlab.report.charts.comparisons import (
    MARK_DOWN,
    ROW,
    XAxis,
    by_row,
    caps,
    dots,
    ground,
    intervals,
    place_on_axis,
    taller_if_narrow,
    texts,
)
from archlab.report.charts.marks import ChartRow, Width, layered, tooltip
from archlab.report.charts.palette import SHAPES
from archlab.report.html import render_page
from archlab.report.ledger import words as ledger_words
from archlab.report.ledger import words_over_sizes
from archlab.report.ledger.over_sizes import gains
from archlab.study.formatting import amount, difference, interval
from archlab.study.outcomes.schema import Better, Unit
from archlab.study.record import Comparison, Heading
from archlab.study.study_file import AS_IT_STANDS

_RELATIVE: dict[Unit, str] = {"tokens/s": "speed", "bytes": "memory"}
"""Map a unit to a chart title. Outcomes with these units are shown as fractions of the reference's mean."""


_BETWEEN_LABELS = 6
"""Smallest distance between the labels of an axis, in pixels. On a phone, labels in between are left out."""


class Panel(NamedTuple):
    """Chart of the predictions for one outcome. Outcomes with different units cannot share a chart, because they cannot
    share an axis."""

    outcome: Heading
    is_relative: bool
    """Whether differences are fractions of the reference's mean."""
    rows: list[ChartRow]


def write_ledger(entries: Sequence[LedgerEntry], path: Path) -> Path:
    """Write the page, creating missing parent folders, and return its path."""
    return write_page(path, render(entries))


def render(entries: Sequence[LedgerEntry], **guide: Any) -> str:
    """Return the page as HTML. `guide` holds the values of the guide's templates, if the ledger is part of a guide."""
    drawn = panels(entries)
    by_year = sorted(sources().values(), key=lambda source: (source.year, source.authors))
    return render_page(
        "ledger",
        {f"predictions-{i}": predictions(panel) for i, panel in enumerate(drawn)} | _sized_charts(entries),
        entries=entries,
        sized_chart=_sized_chart,
        words=ledger_words,
        words_over_sizes=words_over_sizes,
        cited=cited,
        mistakes=mistakes(),
        sources=by_year,
        verdict_counts=Counter(entry.found[0].verdict for entry in entries),
        **{"parts": [], "neighbors": {}, "here": "", **guide},
        panels=drawn,
    )


def _sized_charts(entries: Sequence[LedgerEntry]) -> dict[str, alt.LayerChart]:
    return {
        _sized_chart(entry.claim, found, i): gains(result)
        for entry in entries
        for found in entry.found
        for i, result in enumerate(found.over_sizes)
    }


def _sized_chart(claim: Claim, found: ClaimAtScale, i: int) -> str:
    return f"sizes-{claim.number}-{found.scale}-{i}"


def panels(entries: Sequence[LedgerEntry]) -> list[Panel]:
    """Return the charts of all predictions with results, at every scale. Charts with the most rows come first."""
    panel_by_outcome: dict[tuple[str, Unit, Better], Panel] = {}
    for entry in entries:
        for result in entry.found:
            for judged in result.judged:
                if judged.outcome and judged.comparison:
                    panel = _panel(judged.outcome)
                    key = panel.outcome.title, panel.outcome.unit, panel.outcome.better
                    row = _row(entry, result.scale, judged, judged.outcome, judged.comparison)
                    panel_by_outcome.setdefault(key, panel).rows.append(row)
    return sorted(panel_by_outcome.values(), key=lambda panel: -len(panel.rows))


def _panel(outcome: Heading) -> Panel:
    about = _RELATIVE.get(outcome.unit)
    return Panel(outcome.model_copy(update={"title": about, "unit": "share"}) if about else outcome, bool(about), [])


def _row(
    entry: LedgerEntry, scale: str, judged: JudgedPrediction, outcome: Heading, comparison: Comparison
) -> ChartRow:
    is_relative = outcome.unit in _RELATIVE
    unit: Unit = "share" if is_relative else outcome.unit
    per = judged.share / comparison.difference if is_relative and judged.share and comparison.difference else 1.0
    value, low, high, margin = (
        None if end is None else per * end for end in (comparison.difference, *judged.interval, comparison.margin)
    )
    if value is None or (is_relative and judged.share is None):
        value, low, high, text = None, None, None, comparison.verdict
    else:
        text = f"{(amount if is_relative else difference)(value, unit)} {interval(low, high, unit)}".strip()
    studies = {one.expected.study for found in entry.found for one in found.judged if one.label == judged.label}
    parts = [
        *([judged.expected.study] if len(studies) > 1 else []),
        judged.label,
        *([outcome.name.replace("_", " ")] if is_relative else []),
        *([] if scale == AS_IT_STANDS else [scale]),
    ]
    return {
        "arm": f"{entry.claim.number}. {entry.claim.name}: {', '.join(parts)} (expected: {judged.expected.verdict})",
        "against": judged.against,
        "value": value,
        "low": low,
        "high": high,
        "below": None if margin is None else -margin,
        "above": margin,
        "found": "undecided" if judged.untested else judged.found,
        "result": judged.why,
        "text": text,
    }


FINDINGS = ("as claimed", "undecided", "the opposite")
"""Verdicts on predictions. In this order, they have the colors and shapes of the results better, not distinguishable
and worse."""


def predictions(panel: Panel, width: Width = "container") -> alt.LayerChart:
    """Return a chart with one row per prediction: the measured difference and its interval. The color shows the verdict
    on the prediction."""
    x = _symlog_axis(panel)
    place_on_axis(panel.rows, x)
    color = alt.Color("found:N", scale=alt.Scale(domain=list(FINDINGS), range="ordinal"), legend=None)
    shape = alt.Shape("found:N", scale=alt.Scale(domain=list(FINDINGS), range=list(SHAPES[:3])), legend=None)
    base = by_row(panel.rows).encode(color=color, tooltip=tooltip("arm", "against", "text", "result"))
    margins = by_row(panel.rows).transform_filter("datum.above !== null")
    layers = [
        *ground(panel.rows, 0.0, x),
        margins.mark_rule(style="notch", strokeWidth=14, opacity=0.25, yOffset=MARK_DOWN).encode(
            x=x("below"), x2="above:Q"
        ),
        *intervals(base, x),
        *caps(base, x),
        dots(base, x).encode(shape=shape),
        *texts(panel.rows, width),
    ]
    description = f"Measured differences in {panel.outcome.title} for all predictions, with their intervals"
    return taller_if_narrow(layered(layers, description, ROW * len(panel.rows), width), panel.rows)


def _symlog_axis(panel: Panel) -> XAxis:
    """Return an axis that is linear near zero and logarithmic farther away, on both sides of zero. The linear part is
    about as wide as a typical interval.

    The axis cannot be linear everywhere, because effects of different studies differ by a factor of a hundred or more.
    """
    ends = list(_ends(panel.rows))
    reach = [(row["high"] - row["low"]) / 2 for row in panel.rows if row["low"] is not None]
    near = (median(reach) if reach else 0) or max(map(abs, ends)) or 1.0
    places = [copysign(log1p(abs(end) / near), end) for end in ends]
    low, high = (copysign(near * expm1(abs(place)), place) for place in padded(min(places), max(places)))
    scale = alt.Scale(type="symlog", constant=near, domain=[low, high], nice=False)
    title = axis_title(panel.outcome, "difference, % of the reference" if panel.is_relative else "difference")
    at, absolute = both_sides(low, high, near), not panel.is_relative
    ticks = axis(title, panel.outcome.unit, low, high, grid=False, at=at, of_differences=absolute)
    ticks["labelOverlap"], ticks["labelSeparation"] = "greedy", _BETWEEN_LABELS
    return XAxis(low, high, scale, ticks)


def _ends(rows: Sequence[ChartRow]) -> Iterator[float]:
    yield 0.0
    numbers = (row[end] for row in rows for end in ("value", "low", "high", "below", "above"))
    yield from (end for end in numbers if end is not None)
