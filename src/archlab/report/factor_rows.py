"""Crossed factors as the rows that their pictures draw: the outcome at every level of one at every level of another."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from archlab.config.yaml_text import to_yaml_line
from archlab.report.rows import Row
from archlab.study.formatting import amount, plural, span
from archlab.study.record import ArmSummary, StudySummary


class Pair(NamedTuple):
    """Two factors of a study."""

    lines: str
    """The one with a line per level."""
    over: str
    """The one over whose levels they are drawn."""


def pairs(summary: StudySummary) -> list[Pair]:
    """Every two factors, as the study's interactions have them; none where nothing is crossed."""
    factors = list(summary.arms[0].factors) if summary.contrasts else []
    return [Pair(*two) for two in combinations(factors, 2)]


def levels_of(summary: StudySummary, factor: str) -> list[str]:
    """In the study's order."""
    return list(dict.fromkeys(to_yaml_line(arm.factors[factor]) for arm in summary.arms))


def factor_rows(summary: StudySummary, pair: Pair) -> list[Row]:
    """Per level of both: the mean over the seeds on which all arms with these levels have a value, which is that over
    all other factors; null where there is no such seed."""
    return [
        {
            "arm": line,
            "value": level,
            "mean": fmean(values.values()) if values else None,
            "mark": None,
            "text": _text(line, level, [*values.values()], arms, summary),
        }
        for line, level, arms, values in _cells(summary, pair)
    ]


def factor_seed_rows(summary: StudySummary, pair: Pair) -> list[Row]:
    """The same, seed by seed."""
    return [
        {"arm": line, "value": level, "seed": seed, "loss": value}
        for line, level, _, values in _cells(summary, pair)
        for seed, value in values.items()
    ]


def _cells(summary: StudySummary, pair: Pair) -> Iterator[tuple[str, str, list[ArmSummary], dict[int, float]]]:
    for line in levels_of(summary, pair.lines):
        for level in levels_of(summary, pair.over):
            here = {pair.lines: line, pair.over: level}
            arms = [arm for arm in summary.arms if all(to_yaml_line(arm.factors[f]) == here[f] for f in here)]
            yield line, level, arms, _by_seed(arms)


def _by_seed(arms: Sequence[ArmSummary]) -> dict[int, float]:
    found = {seed: [arm.values.get(seed) for arm in arms] for seed in arms[0].values}
    return {seed: fmean(known) for seed, values in found.items() if len(known := _known(values)) == len(values)}


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _text(line: str, level: str, values: Sequence[float], arms: Sequence[ArmSummary], summary: StudySummary) -> str:
    unit = summary.outcome.unit
    lost = sum(len(arm.diverged) for arm in arms)
    said: list[Any] = [
        f"{amount(fmean(values), unit)} at {level}" if values else f"no value at {level}",
        f"seeds {span(amount(min(values), unit), amount(max(values), unit))}" if values else "",
        f"{plural(lost, 'run')} diverged" if lost else "",
    ]
    return ", ".join(filter(None, said))
