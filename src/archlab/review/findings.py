"""What the rules of shape say of a config."""

from collections.abc import Sequence
from itertools import groupby

from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.review.case import Case, Reading
from archlab.review.published import Distribution, Published
from archlab.review.rule import Level, Measured, Usual, shown
from archlab.review.rules import RULES


class Finding(Base):
    """One value that a rule does not let pass."""

    rule: str
    level: Level
    what: str
    """Field, value, where, and what is usual: one line."""
    field: str
    value: float
    layers: list[int]
    """Where; empty where layers do not differ in it."""
    why: str
    sources: list[str]
    """Keys of who says so, in evidence/sources.yaml."""
    claims: list[int]
    """Numbers of the ledger's claims about it."""
    published: Distribution | None
    """Of notes, and where at least two models are known."""
    others: list[str]
    """Published models that break it in the same direction, with their values."""
    measured: Measured | None
    """What was measured nearest to the value."""


def findings(case: Case) -> list[Finding]:
    """Everything, with the atlas beside it; warnings first."""
    published = Published(case)
    return [
        Finding(
            rule=rule.name,
            level=rule.level,
            what=_line(reading, usual),
            field=reading.field,
            value=reading.value,
            layers=list(reading.layers),
            why=rule.why,
            sources=list(rule.sources),
            claims=list(rule.claims),
            published=published.distribution(rule, reading) if rule.level == "note" else None,
            others=published.others(rule, reading, usual),
            measured=rule.nearest_measured(reading.value, usual),
        )
        for rule in RULES
        for reading, usual in rule.broken(case)
    ]


def warnings(config: Config) -> list[str]:
    """One line per warning; quick, for it leaves the atlas alone."""
    return _lines(config, ("warning",))


def notes_and_warnings(config: Config) -> list[str]:
    """One line each."""
    return _lines(config, ("warning", "note"))


def _lines(config: Config, levels: Sequence[Level]) -> list[str]:
    case = Case(config)
    return [_line(*broken) for rule in RULES if rule.level in levels for broken in rule.broken(case)]


def _line(reading: Reading, usual: Usual) -> str:
    where = f" in layers {_ranges(reading.layers)}" if reading.layers else ""
    return f"{reading.field} {shown(reading.value)}{where} {usual}"


def _ranges(indices: tuple[int, ...]) -> str:
    """`0-2, 5`."""
    runs = [[i for _, i in run] for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
