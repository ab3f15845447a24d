"""All shape rules, and the violations of these rules by a config."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.review.note_rules import NOTE_RULES
from archlab.review.published import Distribution, Published
from archlab.review.shape_rule import Case, Level, PublishedResult, Reading, ShapeRule, Usual, shown
from archlab.review.warning_rules import WARNING_RULES

RULES: tuple[ShapeRule, ...] = (*WARNING_RULES, *NOTE_RULES)


class Finding(Base):
    """Value that breaks a rule."""

    rule: str
    level: Level
    what: str
    """One line with the field, its value, the layers and the usual values."""
    field: str
    value: float
    layers: list[int]
    """Indices of the layers with this value. Empty if the value is the same in all layers."""
    place: str
    """Part of the model with this value: `encoder`, `cross-attention`, or empty for the decoder."""
    why: str
    sources: list[str]
    """Sources of the rule, as keys of evidence/sources.yaml."""
    claims: list[int]
    """Numbers of the claims in the ledger that concern the rule."""
    published: Distribution | None
    """Distribution of the value over published models.

    None for a warning, or if fewer than two published models have the value.
    """
    others: list[str]
    """Published models that break the rule in the same direction (too small or too large), with their values."""
    measured: PublishedResult | None
    """Published measurement closest to the value."""


def findings(case: Case) -> list[Finding]:
    """Return all findings, warnings first, and compare each value with the published models of the atlas."""
    published = Published(case)
    return [
        Finding(
            rule=rule.name,
            level=rule.level,
            what=_line(reading, usual),
            field=reading.field,
            value=reading.value,
            layers=list(reading.layers),
            place=reading.place,
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


class Result(NamedTuple):
    """Value of a config that a rule accepts or rejects."""

    rule: str
    level: Level | None
    """Level of the finding. None if the rule accepts the value."""
    value: str
    """The field, its value and its layers."""
    number: float
    usual: Usual
    published: dict[str, float]
    """Value of each comparable published model, by its name. Empty for rules about hardware."""


def results(case: Case) -> list[Result]:
    """Return all values that the rules check, in the order of the rules. Rules that do not apply are left out."""
    published = Published(case)
    return [
        Result(
            rule=rule.name,
            level=rule.level if usual.side(reading.value) else None,
            value=_value(reading),
            number=reading.value,
            usual=usual,
            published=published.values(rule, reading) if rule.level == "note" else {},
        )
        for rule in RULES
        if (usual := rule.usual(case)) is not None
        for reading in rule.measure(case)
    ]


def warnings(config: Config) -> list[str]:
    """Return one line per warning. This is fast, because the atlas is not read."""
    return _lines(config, ("warning",))


def notes_and_warnings(config: Config) -> list[str]:
    return _lines(config, ("warning", "note"))


def _lines(config: Config, levels: Sequence[Level]) -> list[str]:
    case = Case(config)
    return [_line(*broken) for rule in RULES if rule.level in levels for broken in rule.broken(case)]


def _line(reading: Reading, usual: Usual) -> str:
    return f"{_value(reading)} {usual}"


def _value(reading: Reading) -> str:
    where = f" in layers {_ranges(reading.layers)}" if reading.layers else ""
    where += f" in the {reading.place}" if reading.place else ""
    return f"{reading.field} {shown(reading.value)}{where}"


def _ranges(indices: tuple[int, ...]) -> str:
    runs = [[i for _, i in run] for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of warnings and notes as text, for example `2 warnings, 1 note`."""
    counts = ((sum(finding.level == level for finding in findings), level) for level in ("warning", "note"))
    return ", ".join(f"{n or 'no'} {level}{'' if n in (0, 1) else 's'}" for n, level in counts)


def in_one_line(warnings: Sequence[str]) -> str:
    """Return all warnings in one line, for commands that load a config."""
    n = len(warnings)
    return f"{n} shape warning{'' if n == 1 else 's'}: {'; '.join(warnings)} (`archlab check` explains them)"
