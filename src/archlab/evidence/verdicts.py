"""Whether a claim holds in our runs: a verdict on every expectation, and from these one on the claim.

Supported: every expectation was found. Contradicted: the opposite of one was found. Undecided: all else, for "not
distinguishable" says neither. What is counted and not measured decides nothing. A prediction that its run could not
test is undecided, so that this makes a verdict more careful and never less. Each is of the scale that was run, and
of no other. How well our order of arms agrees with a published one decides nothing either.
"""

from collections.abc import Mapping, Sequence
from math import atanh, sqrt, tanh
from typing import Literal

import numpy as np
from scipy import stats

from archlab.config.core.base import Base
from archlab.evidence.claims import Claim, Expectation, Ranking
from archlab.evidence.compared import Compared, compared, is_difference, unpredicted
from archlab.evidence.results import Results, results_name
from archlab.study.record import Comparison
from archlab.study.stats import ALPHA
from archlab.study.study_file import AS_IT_STANDS, library_study

ExpectationVerdict = Literal["as claimed", "the opposite", "undecided", "not run yet"]
"""Of one expectation."""

ClaimVerdict = Literal["supported", "contradicted", "undecided", "not run yet", "no study yet"]
"""Of a claim at a scale; "no study yet" where it predicts nothing that its runs could decide."""


class JudgedExpectation(Compared):
    """An expectation beside what was found."""

    expected: Expectation
    found: ExpectationVerdict
    untested: str | None = None
    """Why the run could not test it, so that it is undecided whatever its numbers say; null where it could, and where
    nothing was run."""

    @property
    def why(self) -> str:
        """`as claimed: better`."""
        if self.comparison is None:
            return self.found
        if self.is_counted:
            return f"counted, not measured: {self.comparison.verdict}"
        if self.untested:
            return f"{self.found}: could not be tested here"
        is_small = self.comparison.verdict in ("better", "worse", "differs") and is_within_margin(self.comparison)
        return f"{self.found}: {super().why}" + (", but by less than the margin" if is_small else "")


class Agreement(Base):
    """Of our means with published numbers."""

    ranking: Ranking
    arms: int
    """Those that both have."""
    rho: float | None
    """Spearman's rank correlation: 1 the same order, -1 the reverse. null with fewer than four arms."""
    low: float | None
    """Lower end of its 95% interval over the choice of arms, with the variance of Bonett and Wright (2000). null where
    `rho` is, or where it is 1 or -1."""
    high: float | None
    """Upper end."""


class ClaimAtScale(Base):
    """What our runs say of a claim."""

    scale: str
    verdict: ClaimVerdict
    judged: list[JudgedExpectation]
    unpredicted: list[Compared]
    """Differences that were found and of which the claim predicts nothing. They decide nothing."""
    rankings: list[Agreement]


def judge(claim: Claim, results: Mapping[str, Results], scale: str) -> ClaimAtScale:
    """`results`: by name, as they are committed. A study that has none at this scale is not run yet."""
    found = {one: results.get(results_name(one.study, scale)) for one in claim.expected}
    judged = [_judged(one, ran, scale) for one, ran in found.items() if ran is None or one.arm in ran.names]
    rankings = [
        agreement(ranking, found)
        for ranking in claim.rankings
        if (found := results.get(results_name(ranking.study, scale)))
    ]
    tested: list[ExpectationVerdict] = [one.found for one in judged if not one.is_counted]
    return ClaimAtScale(
        scale=scale,
        verdict=_verdict(tested),
        judged=judged,
        unpredicted=[one for one in unpredicted(claim, results, scale) if is_difference(one)],
        rankings=rankings,
    )


def _verdict(found: list[ExpectationVerdict]) -> ClaimVerdict:
    if not found:
        return "no study yet"
    if set(found) == {"not run yet"}:
        return "not run yet"
    if "the opposite" in found:
        return "contradicted"
    return "supported" if set(found) == {"as claimed"} else "undecided"


def _judged(expected: Expectation, results: Results | None, scale: str) -> JudgedExpectation:
    run = compared(results, expected.outcome, expected.margin).get(expected.arm) if results else None
    if run is None or run.comparison is None:
        return JudgedExpectation(
            study=expected.study,
            arm=expected.arm,
            expected=expected,
            found="not run yet",
            label=library_study(expected.study, AS_IT_STANDS).labels.get(expected.arm, expected.arm),
            against="",
            outcome=None,
            comparison=None,
            is_contrast=False,
            share=None,
        )
    untested = expected.untested if scale == AS_IT_STANDS else None
    is_told = run.has_sides and not untested
    found = finding(expected, run.comparison) if is_told else "undecided"
    return JudgedExpectation(**dict(run), expected=expected, found=found, untested=untested)


def finding(expected: Expectation, found: Comparison) -> ExpectationVerdict:
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


def _either(found: bool, opposite: bool) -> ExpectationVerdict:
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


def agreement(ranking: Ranking, results: Results) -> Agreement:
    """Of the outcome that the study's answer is about. An arm of which no run ended well takes no part."""
    means = {arm: found.mean for arm, found in results.compared().items() if found.mean is not None}
    arms = [arm for arm in ranking.values if arm in means]
    if len(arms) < 4:
        return Agreement(ranking=ranking, arms=len(arms), rho=None, low=None, high=None)
    sign = 1 if results.heading(None).better != "higher" else -1
    rho = _spearman([ranking.values[arm] for arm in arms], [sign * means[arm] for arm in arms])
    if abs(rho) > 1 - 1e-9:
        return Agreement(ranking=ranking, arms=len(arms), rho=rho, low=None, high=None)
    reach = float(stats.norm.isf(0.025)) * sqrt((1 + rho**2 / 2) / (len(arms) - 3))
    return Agreement(
        ranking=ranking, arms=len(arms), rho=rho, low=tanh(atanh(rho) - reach), high=tanh(atanh(rho) + reach)
    )


def _spearman(these: Sequence[float], those: Sequence[float]) -> float:
    return float(np.corrcoef(stats.rankdata(these), stats.rankdata(those))[0, 1])
