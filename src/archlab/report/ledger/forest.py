"""Forest plot of a topic: what archlab measured, with intervals, and what publications report, each with its caveat.

Quantities with different names or units have axes of their own. Positions are percentages of the width of the plot, so
that a page can draw it at any size without scaling its text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from archlab.evidence.claims import sources
from archlab.evidence.compared import Compared
from archlab.evidence.ledger import LedgerEntry, measured, topics_of_arms
from archlab.report.charts.axes import axis_title, padded, plain
from archlab.study.formatting import difference
from archlab.study.record import Heading
from archlab.study.study_file import AS_IT_STANDS, library_study


class ForestRow(NamedTuple):
    """One comparison. Positions are percentages of the width."""

    label: str
    where: str
    """Study, with the claim that it judges, or publication, with its scale. The same comparison may judge two claims.
    Each corrects for its own comparisons, so their intervals differ."""
    text: str
    """Difference with its interval, or the two published numbers."""
    result: str
    """Result in words, such as `better`. Empty for a published run, because nothing was tested."""
    at: float
    ends: tuple[float, float] | None
    """Ends of the interval. None if there is none."""
    caveat: str


class Forest(NamedTuple):
    """Comparisons of one quantity on one axis."""

    title: str
    zero: float
    ticks: list[tuple[float, str]]
    """Positions and labels of the axis."""
    rows: list[ForestRow]


class _Effect(NamedTuple):
    """Difference on the axis of its quantity, before the ends of the axis are known."""

    axis: str
    row: ForestRow
    value: float
    interval: tuple[float, float] | None
    tick: Callable[[float], str]


_MOST_TICKS = 4


def forests(name: str, entries: Sequence[LedgerEntry]) -> list[Forest]:
    """Return the plots of a topic, one for each quantity. Quantities that archlab measured come first.

    A comparison whose runs diverged, or of which too few runs have a value, has no difference and is left out.
    """
    groups: dict[str, list[_Effect]] = {}
    for effect in (*_own(name, entries), *_published(name, entries)):
        groups.setdefault(effect.axis, []).append(effect)
    return [_forest(title, effects) for title, effects in groups.items()]


def _own(name: str, entries: Sequence[LedgerEntry]) -> Iterator[_Effect]:
    claim_of = {id(found): entry.claim for entry in entries for found in entry.found[0].judged}
    for found in measured(name, entries):
        claim = claim_of.get(id(found))
        comparison, (low, high) = found.comparison, found.interval
        if found.outcome is None or comparison is None or comparison.difference is None:
            continue
        where = f"archlab, {found.study}{f', claim {claim.number}' if claim else ''}"
        caveat = claim.caveat_in_short if claim else "; ".join(_caveats(found, entries))
        against = f" vs {found.against}" if found.against else ""
        row = ForestRow(f"{found.label}{against}", where, found.effect, found.why, 0, None, caveat)
        interval = None if low is None or high is None else (low, high)
        yield _Effect(_title(found.outcome), row, comparison.difference, interval, _ticks_of(found.outcome))


def _title(outcome: Heading) -> str:
    return f"{outcome.title}: {axis_title(outcome, 'difference')}"


def _ticks_of(outcome: Heading) -> Callable[[float], str]:
    if outcome.unit in ("share", "bytes", "tokens/s", "tokens"):
        return lambda value: difference(value, outcome.unit)
    return lambda value: f"{value:g}"


def _caveats(found: Compared, entries: Iterable[LedgerEntry]) -> list[str]:
    return [entry.claim.caveat_in_short for entry in entries if found.study in entry.claim.studies]


def _published(name: str, entries: Sequence[LedgerEntry]) -> Iterator[_Effect]:
    for entry in entries:
        caveat = "one published number, without an interval"
        for effect in entry.claim.published:
            where = ", ".join(filter(None, (sources()[effect.source].cited, effect.scale)))
            for pair in effect.pairs:
                if name in pair.topics:
                    side = "left" if pair.better == "lower" else "right"
                    yield _single(
                        pair.what, side, pair.of, where, pair.value, pair.reference, f"{caveat}; {effect.read}"
                    )
        for ranking in entry.claim.rankings:
            where = sources()[ranking.source].cited
            for arm, reference, label in _ranked_arms(name, ranking.study):
                if arm in ranking.values and reference in ranking.values:
                    yield _single(
                        ranking.what, "left", label, where, ranking.values[arm], ranking.values[reference], caveat
                    )


def _ranked_arms(name: str, study: str) -> Iterator[tuple[str, str, str]]:
    """Yield the arms of a study that are about a topic, each with its reference and a label."""
    config = library_study(study, AS_IT_STANDS)
    names = list(topics_of_arms(study))
    labels = {arm: config.labels.get(arm, arm) for arm in names}
    for arm in names[1:]:
        if name in topics_of_arms(study)[arm]:
            yield arm, names[0], f"{labels[arm]} vs {labels[names[0]]}"


def _single(
    what: str, side: Literal["left", "right"], label: str, where: str, value: float, reference: float, caveat: str
) -> _Effect:
    text = f"{value - reference:.3g} ({value:g} against {reference:g})"
    row = ForestRow(label, where, text, "", 0, None, caveat)
    return _Effect(f"{what}, as published: difference ({side} is better)", row, value - reference, None, "{:g}".format)


def _forest(title: str, effects: Sequence[_Effect]) -> Forest:
    ends = [0.0, *(value for effect in effects for value in (effect.value, *(effect.interval or ())))]
    low, high = padded(min(ends), max(ends))

    def at(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    rows = [
        effect.row._replace(
            at=at(effect.value), ends=effect.interval and (at(effect.interval[0]), at(effect.interval[1]))
        )
        for effect in effects
    ]
    ticks = [(at(value), effects[0].tick(value)) for value in plain(low, high, _MOST_TICKS)]
    return Forest(title, at(0.0), ticks, rows)
