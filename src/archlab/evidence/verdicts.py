"""Whether a claim holds in our runs: a verdict on every expectation, and from these one on the claim.

Supported: every expectation was found. Contradicted: the opposite of one was found. Undecided: all else, for "not
distinguishable" says neither. What is counted and not measured decides nothing. Each is of the scale that was run, and
of no other.
"""

from collections.abc import Mapping
from typing import Literal

from archlab.config.base import Base
from archlab.evidence.rankings import Agreement, agreement
from archlab.evidence.results import Results, results_name
from archlab.evidence.schema import Claim, Expectation
from archlab.study.formatting import difference, effect
from archlab.study.record import Comparison, Heading, Measured
from archlab.study.scales import AS_IT_STANDS, library_study
from archlab.study.stats import ALPHA

Finding = Literal["as claimed", "the opposite", "undecided", "not run yet"]
"""Of one expectation."""

Verdict = Literal["supported", "contradicted", "undecided", "not run yet", "no study yet"]
"""Of a claim at a scale; "no study yet" where it predicts nothing that its runs could decide."""


class Judged(Base):
    """An expectation beside what was found."""

    expected: Expectation
    found: Finding
    label: str
    """What the arm is called."""
    against: str
    """What it is compared with; empty where nothing was run."""
    outcome: Heading | None
    """null where nothing was run."""
    comparison: Comparison | None
    """null where nothing was run."""
    share: float | None
    """The difference as a share of the reference's mean; null where that says nothing, and where nothing was run."""
    effects: tuple[float, float] | None = None
    """Of an interaction: the two effects of which it is the difference, that which is subtracted first."""

    @property
    def is_counted(self) -> bool:
        """Whether it follows from the config, as the bytes of a cache do: no run could find anything else."""
        return self.outcome is not None and self.outcome.source == "config"

    @property
    def why(self) -> str:
        """`as claimed: better`."""
        if self.comparison is None:
            return self.found
        if self.is_counted:
            return f"counted, not measured: {self.comparison.verdict}"
        is_small = self.comparison.verdict in ("better", "worse", "differs") and is_within_margin(self.comparison)
        return f"{self.found}: {self.comparison.verdict}" + (", but by less than the margin" if is_small else "")

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The one that decides: of what is equivalent that which lies within the margin, else that which leaves 0 out
        where there is a difference."""
        if self.comparison is None:
            return None, None
        if self.comparison.verdict == "equivalent":
            return self.comparison.within_low, self.comparison.within_high
        return self.comparison.low, self.comparison.high

    @property
    def effect(self) -> str:
        """`-0.021 [-0.030, -0.012] bits per byte`; empty where there is none."""
        if self.outcome is None or self.comparison is None or self.comparison.difference is None:
            return ""
        said = effect(self.comparison.difference, *self.interval, self.outcome.unit)
        if self.effects:
            first, other = (difference(value, self.outcome.unit) for value in self.effects)
            return f"{said} ({other} less {first})"
        return said if self.share is None else f"{said} ({self.share:+.1%})"


class ClaimAtScale(Base):
    """What our runs say of a claim."""

    scale: str
    verdict: Verdict
    judged: list[Judged]
    rankings: list[Agreement]


def judge(claim: Claim, results: Mapping[str, Results], scale: str) -> ClaimAtScale:
    """`results`: by name, as they are committed. A study that has none at this scale is not run yet."""
    found = {one: results.get(results_name(one.study, scale)) for one in claim.expected}
    judged = [_judged(one, ran) for one, ran in found.items() if ran is None or one.arm in ran.names]
    rankings = [
        agreement(ranking, found)
        for ranking in claim.rankings
        if (found := results.get(results_name(ranking.study, scale)))
    ]
    tested: list[Finding] = [one.found for one in judged if not one.is_counted]
    return ClaimAtScale(scale=scale, verdict=_verdict(tested), judged=judged, rankings=rankings)


def _verdict(found: list[Finding]) -> Verdict:
    if not found:
        return "no study yet"
    if set(found) == {"not run yet"}:
        return "not run yet"
    if "the opposite" in found:
        return "contradicted"
    return "supported" if set(found) == {"as claimed"} else "undecided"


def _judged(expected: Expectation, results: Results | None) -> Judged:
    measured = results.compared(expected.outcome, expected.margin) if results else {}
    comparison = measured[expected.arm].comparison if expected.arm in measured else None
    if results is None or comparison is None:
        return Judged(
            expected=expected,
            found="not run yet",
            label=library_study(expected.study, AS_IT_STANDS).labels.get(expected.arm, expected.arm),
            against="",
            outcome=None,
            comparison=None,
            share=None,
        )
    labels = {arm.name: arm.label for arm in results.about.arms}
    outcome = results.heading(expected.outcome)
    effects = results.effects(expected.outcome, expected.arm)
    of = "effect of " if effects else ""
    return Judged(
        expected=expected,
        found=finding(expected, comparison) if _has_sides(expected.arm in labels, comparison) else "undecided",
        label=labels.get(expected.arm, f"{of}{expected.arm}"),
        against=labels.get(comparison.reference, f"{of and 'that '}{comparison.reference}"),
        effects=effects,
        outcome=outcome,
        comparison=comparison,
        share=_share(outcome, comparison, measured.get(comparison.reference)),
    )


def _share(outcome: Heading, comparison: Comparison, reference: Measured | None) -> float | None:
    """Of speeds and bytes, which say little without it."""
    if outcome.unit not in ("tokens/s", "bytes") or reference is None or not reference.mean:
        return None
    return None if comparison.difference is None else comparison.difference / reference.mean


def _has_sides(is_arm: bool, found: Comparison) -> bool:
    """Of a contrast in which runs diverged, nobody can tell for which side that speaks."""
    return is_arm or "diverged" not in found.verdict


def finding(expected: Expectation, found: Comparison) -> Finding:
    """Whether what was expected was found, its opposite, or neither.

    A difference that was found, and that is shown to be smaller than the margin, does not matter. A difference speaks
    against "equivalent", "not worse" and "not better" where its whole interval lies beyond the margin.
    """
    match expected.verdict:
        case "better":
            return _either(_is_better(found), _is_worse(found))
        case "worse":
            return _either(_is_worse(found), _is_better(found))
        case "higher":
            return _either(_differs(found, 1), _differs(found, -1))
        case "lower":
            return _either(_differs(found, -1), _differs(found, 1))
        case "equivalent":
            return _either(_is_equivalent(found), _matters(found) and (_is_better(found) or _is_worse(found)))
        case "not worse":
            return _either(_is_equivalent(found) or _is_better(found), _matters(found) and _is_worse(found))
        case "not better":
            return _either(_is_equivalent(found) or _is_worse(found), _matters(found) and _is_better(found))


def _either(found: bool, opposite: bool) -> Finding:
    return "as claimed" if found else "the opposite" if opposite else "undecided"


def _is_better(found: Comparison) -> bool:
    return found.verdict in ("better", "reference diverged")


def _is_worse(found: Comparison) -> bool:
    return found.verdict in ("worse", "diverged")


def _is_equivalent(found: Comparison) -> bool:
    return found.verdict in ("equivalent", "equal") or is_within_margin(found)


def is_within_margin(found: Comparison) -> bool:
    """Whether the true difference is shown to be smaller than the margin, be there one or not."""
    return found.p_equivalent is not None and found.p_equivalent < ALPHA and "diverged" not in found.verdict


def _matters(found: Comparison) -> bool:
    """Whether a difference lies beyond the margin as a whole; all do where there is none, or where runs diverged."""
    if found.margin is None or found.low is None or found.high is None or "diverged" in found.verdict:
        return True
    return found.low >= found.margin or found.high <= -found.margin


def _differs(found: Comparison, sign: int) -> bool:
    is_found = found.verdict in ("better", "worse", "differs")
    return is_found and found.difference is not None and found.difference * sign > 0
