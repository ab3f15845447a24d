"""Verdicts on claims, based on archlab's runs. Each prediction of a claim gets a verdict, and the verdict on the claim
follows from these.

A claim is "supported" if every prediction came true, and "contradicted" if the opposite of any prediction was found.
Otherwise, it is "undecided", because a result of "not distinguishable" supports neither side. A prediction that the
runs could not test is also undecided, which can only make the verdict on the claim more cautious.

Outcomes that are computed from the config do not affect the verdict. Neither does the comparison of archlab's order of
arms with a published order. A verdict holds only for the scale that was run.
"""

from collections.abc import Mapping, Sequence
from math import atanh, sqrt, tanh
from typing import Literal

import numpy as np
import scipy  # loads its parts on first use

from archlab.config.core.base import Base
from archlab.evidence.claims import Claim, Expectation, Ranking
from archlab.evidence.compared import Compared, compared, is_difference, unpredicted
from archlab.evidence.results import Results, results_name
from archlab.study.formatting import contrast_text
from archlab.study.record import Comparison
from archlab.study.stats import ALPHA
from archlab.study.study_file import AS_IT_STANDS, library_study

ExpectationVerdict = Literal["as claimed", "the opposite", "undecided", "not run yet"]
"""Verdict on one prediction of a claim."""

ClaimVerdict = Literal["supported", "contradicted", "undecided", "not run yet", "no study yet"]
"""Verdict on a claim at one scale. "no study yet" means that the claim has no prediction that runs can test."""


_CLEAR_RESULTS = ("equivalent", "equal")


class JudgedExpectation(Compared):
    """A prediction, its result and the verdict on it."""

    expected: Expectation
    found: ExpectationVerdict
    untested: str | None = None
    """Reason why the run could not test the prediction. The verdict is then "undecided", whatever the run shows. null
    if the run could test the prediction, or if nothing was run."""

    @property
    def why(self) -> str:
        """Result and verdict in words, such as `better, as claimed`."""
        if self.comparison is None:
            return self.found
        if self.is_counted:
            return f"{self.comparison.verdict} (counted, not measured)"
        if self.untested:
            return "could not be tested here, so undecided"
        is_small = self.comparison.verdict in ("better", "worse", "differs") and is_within_margin(self.comparison)
        result = super().why + (" by less than the margin" if is_small else "")
        return f"{result}, {_relation(self.found, self.comparison)}"


def _relation(verdict: ExpectationVerdict, comparison: Comparison) -> str:
    """Return a phrase such as `against the claim` that follows the result and relates it to the prediction."""
    match verdict:
        case "the opposite":
            return "against the claim"
        case "undecided" if comparison.verdict in ("better", "worse", "differs"):
            return "but not clearly by more than the margin, so undecided"
        case "undecided":
            return f"{'but' if comparison.verdict in _CLEAR_RESULTS else 'so'} undecided"
        case _:
            return verdict


class Agreement(Base):
    """Comparison of two orders of the same arms: by archlab's means, and by published values."""

    ranking: Ranking
    arms: int
    """Number of arms that have both a mean and a published value."""
    rho: float | None
    """Spearman's rank correlation: 1 for the same order, -1 for the reverse order. null for fewer than four arms."""
    low: float | None
    """Lower end of the 95% confidence interval of `rho`, which treats the arms as a sample. The variance is that of
    Bonett and Wright (2000). null if `rho` is null, 1 or -1."""
    high: float | None
    """Upper end of the 95% confidence interval of `rho`. null if `low` is null."""


class ClaimAtScale(Base):
    """Results of archlab's runs about a claim at one scale."""

    scale: str
    verdict: ClaimVerdict
    judged: list[JudgedExpectation]
    unpredicted: list[Compared]
    """Differences that were found but not predicted. They do not affect the verdict."""
    rankings: list[Agreement]


def judge(claim: Claim, results: Mapping[str, Results], scale: str) -> ClaimAtScale:
    """Return the results about a claim at one scale, with their verdicts. `results` maps names to committed results. A
    prediction without results at this scale counts as not run yet."""
    runs = {expected: results.get(results_name(expected.study, scale)) for expected in claim.expected}
    judged = [
        _judged(expected, ran, scale) for expected, ran in runs.items() if ran is None or expected.arm in ran.names
    ]
    rankings = [
        agreement(ranking, ran)
        for ranking in claim.rankings
        if (ran := results.get(results_name(ranking.study, scale)))
    ]
    tested: list[ExpectationVerdict] = [prediction.found for prediction in judged if not prediction.is_counted]
    return ClaimAtScale(
        scale=scale,
        verdict=_verdict(tested),
        judged=judged,
        unpredicted=[result for result in unpredicted(claim, results, scale) if is_difference(result)],
        rankings=rankings,
    )


def _verdict(verdicts: list[ExpectationVerdict]) -> ClaimVerdict:
    if not verdicts:
        return "no study yet"
    if set(verdicts) == {"not run yet"}:
        return "not run yet"
    if "the opposite" in verdicts:
        return "contradicted"
    return "supported" if set(verdicts) == {"as claimed"} else "undecided"


def _judged(expected: Expectation, results: Results | None, scale: str) -> JudgedExpectation:
    run = compared(results, expected.outcome, expected.margin).get(expected.arm) if results else None
    if run is None or run.comparison is None:
        return JudgedExpectation(
            study=expected.study,
            arm=expected.arm,
            expected=expected,
            found="not run yet",
            label=library_study(expected.study, AS_IT_STANDS).labels.get(expected.arm, contrast_text(expected.arm)),
            against="",
            outcome=None,
            comparison=None,
            is_contrast=False,
            share=None,
        )
    untested = expected.untested if scale == AS_IT_STANDS else None
    is_decidable = run.has_sides and not untested
    verdict = finding(expected, run.comparison) if is_decidable else "undecided"
    return JudgedExpectation(**dict(run), expected=expected, found=verdict, untested=untested)


def finding(expected: Expectation, comparison: Comparison) -> ExpectationVerdict:
    """Return whether the result agrees with the prediction, is its opposite, or is undecided.

    A difference counts as no difference if it is shown to be smaller than the margin. A difference contradicts
    "equivalent", "not worse" or "not better" only if its whole confidence interval lies outside the margin.
    """
    match expected.verdict:
        case "better":
            return _either(_is_better(comparison), _is_worse(comparison))
        case "worse":
            return _either(_is_worse(comparison), _is_better(comparison))
        case "higher":
            return _either(_differs(comparison, 1), _differs(comparison, -1))
        case "lower":
            return _either(_differs(comparison, -1), _differs(comparison, 1))
        case "equivalent":
            return _either(
                _is_equivalent(comparison), _matters(comparison) and (_is_better(comparison) or _is_worse(comparison))
            )
        case "not worse":
            return _either(
                _is_equivalent(comparison) or _is_better(comparison), _matters(comparison) and _is_worse(comparison)
            )
        case "not better":
            return _either(
                _is_equivalent(comparison) or _is_worse(comparison), _matters(comparison) and _is_better(comparison)
            )


def _either(is_found: bool, opposite: bool) -> ExpectationVerdict:
    return "as claimed" if is_found else "the opposite" if opposite else "undecided"


def _is_better(comparison: Comparison) -> bool:
    return comparison.verdict in ("better", "reference diverged")


def _is_worse(comparison: Comparison) -> bool:
    return comparison.verdict in ("worse", "diverged")


def _is_equivalent(comparison: Comparison) -> bool:
    return comparison.verdict in ("equivalent", "equal") or is_within_margin(comparison)


def is_within_margin(comparison: Comparison) -> bool:
    """Return whether the result shows that the true difference is smaller than the margin."""
    return (
        comparison.p_equivalent is not None and comparison.p_equivalent < ALPHA and "diverged" not in comparison.verdict
    )


def _matters(comparison: Comparison) -> bool:
    """Return whether a difference matters: its whole confidence interval must lie outside the margin. If there is no
    margin, or if runs diverged, every difference matters."""
    if (
        comparison.margin is None
        or comparison.low is None
        or comparison.high is None
        or "diverged" in comparison.verdict
    ):
        return True
    return comparison.low >= comparison.margin or comparison.high <= -comparison.margin


def _differs(comparison: Comparison, sign: int) -> bool:
    is_different = comparison.verdict in ("better", "worse", "differs")
    return is_different and comparison.difference is not None and comparison.difference * sign > 0


def agreement(ranking: Ranking, results: Results) -> Agreement:
    """Compare a published order of arms with the order of archlab's means of the primary outcome. Arms without a
    successful run are left out."""
    means = {name: arm.mean for name, arm in results.compared().items() if arm.mean is not None}
    arms = [arm for arm in ranking.values if arm in means]
    if len(arms) < 4:
        return Agreement(ranking=ranking, arms=len(arms), rho=None, low=None, high=None)
    sign = 1 if results.heading(None).better != "higher" else -1
    rho = _spearman([ranking.values[arm] for arm in arms], [sign * means[arm] for arm in arms])
    if abs(rho) > 1 - 1e-9:
        return Agreement(ranking=ranking, arms=len(arms), rho=rho, low=None, high=None)
    reach = float(scipy.stats.norm.isf(0.025)) * sqrt((1 + rho**2 / 2) / (len(arms) - 3))
    return Agreement(
        ranking=ranking, arms=len(arms), rho=rho, low=tanh(atanh(rho) - reach), high=tanh(atanh(rho) + reach)
    )


def _spearman(left: Sequence[float], right: Sequence[float]) -> float:
    return float(np.corrcoef(scipy.stats.rankdata(left), scipy.stats.rankdata(right))[0, 1])
