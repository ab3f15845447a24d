"""Verdicts on claims, based on archlab's runs.

Every claim has one primary prediction, which decides its verdict. Holm's correction covers the primary predictions of
all claims. Other comparisons of which the claim's statement says the result are its instances: they cannot decide a
claim, but an instance with the opposite result makes it "mixed". All other predictions only describe.

A difference counts if it is at least as large as the margin of its unit, which is the same for all claims. If the
manipulation check of a study fails, its runs cannot test a prediction. A verdict holds only for the scale that was run.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from archlab.config.core.base import Base
from archlab.evidence.claims import Claim, Prediction, claims, margins
from archlab.evidence.compared import Compared, compared, differs_or_diverged, unpredicted
from archlab.evidence.findings import (
    CLEAR_RESULTS,
    WITHIN_MARGIN,
    PredictionVerdict,
    PValues,
    finding,
    is_large,
    is_within_margin,
    p_values,
)
from archlab.evidence.over_sizes import SizedResult, sized_result
from archlab.evidence.rankings import Agreement, agreement
from archlab.evidence.results import Results, results_name
from archlab.study.formatting import contrast_text
from archlab.study.manipulation import unmet
from archlab.study.power import smallest_found
from archlab.study.record import Comparison, Heading
from archlab.study.schema import ManipulationCheck
from archlab.study.stats import ALPHA, holm, holm_level
from archlab.study.study_file import library_values

ClaimVerdict = Literal[
    "as claimed here", "not found here", "the opposite found here", "mixed", "not testable here", "not run yet",
    "no study yet",
]  # fmt: skip
"""Verdict on a claim at one scale. "not found here": the primary prediction is undecided. "mixed": the primary
prediction and an instance contradict each other. "no study yet": the claim has no prediction that runs can test."""

Role = Literal["primary", "instance", "described"]
"""Role of a prediction in its claim: it decides, it can make the verdict "mixed", or it has no effect."""


class JudgedPrediction(Compared):
    """A prediction, its result and the verdict on it."""

    expected: Prediction
    role: Role
    found: PredictionVerdict
    untested: str | None = None
    """Reason why the runs could not test the prediction. null if they could, or if nothing was run."""
    would_find: float | None = None
    """Smallest true difference for which the rule of the ledger would find the prediction with 80% probability. null
    unless the prediction is a primary one about a difference."""

    @property
    def decided_within(self) -> bool:
        if self.comparison is None or self.comparison.within_low is None or self.found == "the opposite":
            return False
        if self.expected.verdict not in WITHIN_MARGIN:
            return self.role != "primary" and super().decided_within
        return self.role == "primary" or self.found != "as claimed" or is_within_margin(self.comparison)

    @property
    def why(self) -> str:
        """Result and verdict in words, such as `better, as claimed`."""
        if self.comparison is None:
            return self.found
        if self.is_counted:
            return f"{self.comparison.verdict} (counted, not measured)"
        if self.untested:
            return "not testable here"
        is_small = self.comparison.is_difference and not is_large(self.comparison)
        result = super().why + (" by less than the margin" if is_small else "")
        return f"{result}, {_relation(self.found, self.comparison, self.expected, self.role)}"


def _relation(verdict: PredictionVerdict, comparison: Comparison, prediction: Prediction, role: Role) -> str:
    """Return a phrase such as `against the claim` that follows the result and relates it to the prediction.

    A described prediction is no part of the claim.
    """
    match verdict:
        case "the opposite":
            return "against the prediction" if role == "described" else "against the claim"
        case "as claimed" if role == "described":
            return "as predicted"
        case "undecided" if comparison.is_difference and is_large(comparison):
            may_be_small = prediction.verdict in WITHIN_MARGIN
            return "but maybe within the margin, so undecided" if may_be_small else "but undecided after the correction"
        case "undecided":
            return f"{'but' if comparison.verdict in CLEAR_RESULTS else 'so'} undecided"
        case _:
            return verdict


class ClaimAtScale(Base):
    """Results of archlab's runs about a claim at one scale."""

    scale: str
    verdict: ClaimVerdict
    at_half: ClaimVerdict
    """Verdict with half of every margin."""
    at_double: ClaimVerdict
    """Verdict with twice every margin."""
    judged: list[JudgedPrediction]
    """All predictions, the primary one first."""
    unpredicted: list[Compared]
    """Differences that were found but not predicted. They do not affect the verdict."""
    rankings: list[Agreement]
    over_sizes: list[SizedResult]
    """Gains over model sizes. They do not affect the verdict."""

    @property
    def primary(self) -> JudgedPrediction | None:
        """The prediction that decides. None if it was not run at this scale."""
        return next((one for one in self.judged if one.role == "primary" and one.comparison), None)

    @property
    def deciding(self) -> list[JudgedPrediction]:
        """The primary prediction and the instances."""
        return [one for one in self.judged if one.role != "described"]


class PrimaryFinding(NamedTuple):
    """Verdict on a primary prediction."""

    found: PredictionVerdict
    level: float | None = None
    """Level at which Holm's correction over all claims judges the prediction. None if it was not tested."""


class PrimaryFindings(NamedTuple):
    """Verdicts on the primary predictions of all claims at one scale, by number of the claim."""

    at_margin: Mapping[int, PrimaryFinding]
    at_half: Mapping[int, PrimaryFinding]
    at_double: Mapping[int, PrimaryFinding]


def primary_findings(family: Iterable[Claim], results: Mapping[str, Results], scale: str) -> PrimaryFindings:
    """Return the verdicts on the primary predictions of these claims, which share Holm's correction. Predictions that
    were not run do not count for it."""
    claims_of_family = list(family)
    return PrimaryFindings(*(_primary_findings(claims_of_family, results, scale, factor) for factor in (1.0, 0.5, 2.0)))


def judge(
    claim: Claim, results: Mapping[str, Results], scale: str, primaries: PrimaryFindings | None = None
) -> ClaimAtScale:
    """Return the results about a claim at one scale, with their verdicts.

    `results` maps names to committed results. A prediction without results at this scale counts as not run yet.
    `primaries` are the verdicts on the primary predictions of all claims, this one included. By default, they are
    computed.
    """
    if primaries is None:
        primaries = primary_findings(({**claims(), claim.number: claim}).values(), results, scale)
    judged = _judged_at(claim, primaries.at_margin, results, scale, 1.0)
    rankings = [
        agreement(ranking, ran)
        for ranking in claim.rankings
        if (ran := results.get(results_name(ranking.study, scale)))
    ]
    over_sizes = [
        sized_result(expected, ran)
        for expected in claim.over_sizes
        if (ran := results.get(results_name(expected.study, scale)))
    ]
    return ClaimAtScale(
        scale=scale,
        verdict=_verdict(judged),
        at_half=_verdict(_judged_at(claim, primaries.at_half, results, scale, 0.5)),
        at_double=_verdict(_judged_at(claim, primaries.at_double, results, scale, 2.0)),
        judged=judged,
        unpredicted=[result for result in unpredicted(claim, results, scale) if differs_or_diverged(result)],
        rankings=rankings,
        over_sizes=over_sizes,
    )


def _verdict(judged: Sequence[JudgedPrediction]) -> ClaimVerdict:
    primary = [one.found for one in judged if one.role == "primary"]
    instances = {one.found for one in judged if one.role == "instance"}
    if not primary:
        return "no study yet"
    match primary[0]:
        case "not run yet":
            return "not run yet"
        case "not testable":
            return "not testable here"
        case "as claimed":
            return "mixed" if "the opposite" in instances else "as claimed here"
        case "the opposite":
            return "mixed" if "as claimed" in instances else "the opposite found here"
        case _:
            return "mixed" if instances >= {"as claimed", "the opposite"} else "not found here"


def _judged_at(
    claim: Claim, primaries: Mapping[int, PrimaryFinding], results: Mapping[str, Results], scale: str, factor: float
) -> list[JudgedPrediction]:
    """Return the verdicts on all predictions of a claim, with every margin multiplied by `factor`. Predictions about
    arms that the study does not have at this scale are left out, except the primary one."""
    roles: list[tuple[Role, Iterable[Prediction]]] = [("instance", claim.instances), ("described", claim.described)]
    judged = list[JudgedPrediction]()
    if claim.primary:
        judged.append(_judged(claim.primary, "primary", results, scale, factor, primaries[claim.number]))
    for role, predictions in roles:
        for prediction in predictions:
            ran = results.get(results_name(prediction.study, scale))
            if ran is None or prediction.arm in ran.names:
                judged.append(_judged(prediction, role, results, scale, factor))
    return judged


def _judged(
    prediction: Prediction,
    role: Role,
    results: Mapping[str, Results],
    scale: str,
    factor: float,
    decided: PrimaryFinding | None = None,
) -> JudgedPrediction:
    """Return the verdict on a prediction. `decided` is the verdict after the correction over all claims; None for
    predictions that this correction does not cover."""
    ran = results.get(results_name(prediction.study, scale))
    run = None
    if ran is not None:
        only = prediction.arm if role == "primary" else None
        level = decided.level if decided else None
        margin = margin_for(ran, prediction.outcome, factor)
        run = compared(ran, prediction.outcome, margin, only, level).get(prediction.arm)
    if ran is None or run is None or run.comparison is None:
        return JudgedPrediction(
            study=prediction.study,
            arm=prediction.arm,
            expected=prediction,
            role=role,
            found="not run yet",
            label=library_values(prediction.study).get("labels", {}).get(prediction.arm, contrast_text(prediction.arm)),
            against="",
            outcome=None,
            comparison=None,
            is_contrast=False,
            share=None,
        )
    untested = why_untested(prediction, ran)
    if untested:
        found = "not testable"
    elif decided:
        found = decided.found
    else:
        found = finding(prediction.verdict, run.comparison) if run.has_sides else "undecided"
    return JudgedPrediction(
        **dict(run),
        expected=prediction,
        role=role,
        found=found,
        untested=untested,
        would_find=_would_find(prediction, ran, decided, factor),
    )


def _would_find(prediction: Prediction, ran: Results, decided: PrimaryFinding | None, factor: float) -> float | None:
    if decided is None or decided.level is None or prediction.verdict in WITHIN_MARGIN:
        return None
    estimate = ran.t_test(prediction.outcome, prediction.arm)
    if estimate is None or not estimate.error:
        return None
    margin = margin_for(ran, prediction.outcome, factor) or 0.0
    return smallest_found(estimate.error, estimate.freedom, decided.level, margin)


def margin_for(results: Results, outcome: str | None, factor: float = 1.0) -> float | None:
    """Return the margin for an outcome of a study, in the outcome's unit. Return None if its unit has no margin, or if
    the first arm has no value."""
    heading = results.heading(outcome) if outcome is None or outcome in results.values else None
    margin = margins().get(heading.unit) if heading else None
    if heading is None or margin is None or heading.source == "config":
        return None
    if not margin.is_relative:
        return factor * margin.largest
    mean = results.mean(outcome, results.about.arms[0].name)
    return factor * margin.largest * abs(mean) if mean else None


def why_untested(prediction: Prediction, ran: Results) -> str | None:
    """Return why the runs cannot test a prediction: the manipulation checks that they do not meet. Return None if they
    meet all."""

    def measured(outcome: str | None, arm: str) -> tuple[Heading, float | None] | None:
        was_run = arm in {one.name for one in ran.about.arms}
        return (ran.heading(outcome), ran.mean(outcome, arm)) if was_run else None

    labels = {arm.name: arm.label for arm in ran.about.arms}
    failed = unmet(_checks_of(ran.about.study, ran.about.scale), labels, measured)
    texts = [check.text for check in failed if check.concerns(ran.heading(prediction.outcome).name, prediction.arm)]
    return " ".join(texts) or None


_CHECKS = TypeAdapter(list[ManipulationCheck])


@cache
def _checks_of(study: str, scale: str) -> tuple[ManipulationCheck, ...]:
    return tuple(_CHECKS.validate_python(library_values(study, scale).get("checks", [])))


def _primary_findings(
    family: Iterable[Claim], results: Mapping[str, Results], scale: str, factor: float
) -> dict[int, PrimaryFinding]:
    found, sides = dict[int, PrimaryFinding](), dict[int, PValues]()
    for claim in family:
        prediction = claim.primary
        ran = results.get(results_name(prediction.study, scale)) if prediction else None
        if prediction is None or ran is None or prediction.arm not in ran.names:
            found[claim.number] = PrimaryFinding("not run yet")
        elif why_untested(prediction, ran):
            found[claim.number] = PrimaryFinding("not testable")
        else:
            sides[claim.number] = _sides(prediction, ran, factor)
    smallest = [min(pair) for pair in sides.values()]
    for index, ((number, pair), p) in enumerate(zip(sides.items(), holm(smallest), strict=True)):
        side: PredictionVerdict = "as claimed" if min(pair) == pair.claimed else "the opposite"
        found[number] = PrimaryFinding(side if p < ALPHA else "undecided", holm_level(smallest, index))
    return found


def _sides(prediction: Prediction, ran: Results, factor: float) -> PValues:
    """Return the p-values of a prediction and of its opposite."""
    margin = margin_for(ran, prediction.outcome, factor)
    run = compared(ran, prediction.outcome, margin, prediction.arm).get(prediction.arm)
    if run is None or run.comparison is None or not run.has_sides:
        return PValues(1.0, 1.0)
    if "diverged" in run.comparison.verdict:
        verdict = finding(prediction.verdict, run.comparison)
        return PValues(0.0 if verdict == "as claimed" else 1.0, 0.0 if verdict == "the opposite" else 1.0)
    estimate = ran.t_test(prediction.outcome, prediction.arm)
    if estimate is None:
        return PValues(1.0, 1.0)
    return p_values(prediction.verdict, estimate, ran.heading(prediction.outcome).better, margin or 0.0)
