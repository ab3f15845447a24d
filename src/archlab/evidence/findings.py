"""Findings on one prediction: a comparison is as claimed, the opposite, or undecided."""

from typing import Literal, NamedTuple

import numpy as np

from archlab.evidence.claims import Predicted
from archlab.study.outcomes.schema import Better
from archlab.study.record import Comparison
from archlab.study.stats import ALPHA, Estimate, upper_tail

PredictionVerdict = Literal["as claimed", "the opposite", "undecided", "not testable", "not run yet"]
"""Verdict on one prediction of a claim. "not testable": a manipulation check of the study failed."""

CLEAR_RESULTS = ("equivalent", "equal")
"""Results of a comparison that show that a difference is too small to matter."""


WITHIN_MARGIN = ("equivalent", "not worse", "not better")
"""Predictions that are found if the difference is shown to be within the margin, on both sides or on one."""


class PValues(NamedTuple):
    """p-values of a prediction and of its opposite."""

    claimed: float
    opposite: float


def p_values(predicted: Predicted, estimate: Estimate, better: Better, margin: float) -> PValues:
    """Return the p-values of a prediction and of its opposite, from one t-test.

    "better", "worse", "higher" and "lower" are found if the mean differs from zero (two-sided), and if it is at least
    as large as the margin. "not worse" and "not better" are found if the mean is shown to be on the right side of the
    margin (one-sided, a test of non-inferiority), and "equivalent" if both are (Schuirmann 1987). Their opposite is
    found if the mean is shown to be beyond the margin (two-sided).
    """
    up = -1 if better == "higher" else 1  # the direction of the difference that is worse, or for "neither" higher
    above, below = (_p_beyond(estimate, margin, sign) for sign in (up, -up))
    is_not_above, is_not_below = (_p_beyond(estimate, -margin, sign) for sign in (-up, up))
    worse, better_side = (_p_difference(estimate, margin, sign) for sign in (up, -up))
    match predicted:
        case "better" | "lower":
            return PValues(better_side, worse)
        case "worse" | "higher":
            return PValues(worse, better_side)
        case "equivalent":
            return PValues(max(is_not_above, is_not_below), min(1.0, 2 * min(above, below)))
        case "not worse":
            return PValues(is_not_above, min(1.0, 2 * above))
        case "not better":
            return PValues(is_not_below, min(1.0, 2 * below))


def _p_difference(estimate: Estimate, margin: float, sign: int) -> float:
    """Return the two-sided p-value of a difference with this sign; 1 if the mean is smaller than the margin."""
    return estimate.p if sign * estimate.mean >= max(margin, np.finfo(float).tiny) else 1.0


def _p_beyond(estimate: Estimate, bound: float, sign: int) -> float:
    """Return the one-sided p-value of the hypothesis that `sign` times the true mean is at most `bound`."""
    distance = sign * estimate.mean - bound
    if estimate.error:
        return upper_tail(distance / estimate.error, estimate.freedom)
    if distance <= 0:
        return 1.0
    return estimate.p if estimate.mean else 0.0  # arms with identical results differ by exactly zero


def finding(predicted: Predicted, comparison: Comparison) -> PredictionVerdict:
    """Return whether the result of a study agrees with a prediction, is its opposite, or is undecided.

    A difference counts only if it is at least as large as the margin. A difference contradicts "equivalent", "not
    worse" or "not better" only if its whole confidence interval lies outside the margin.
    """
    is_better = comparison.verdict in ("better", "reference diverged")
    is_worse = comparison.verdict in ("worse", "diverged")
    is_equivalent = comparison.verdict in CLEAR_RESULTS or is_within_margin(comparison)
    large, beyond = is_large(comparison), _is_beyond_margin(comparison)
    match predicted:
        case "better":
            return _either(is_better and large, is_worse and large)
        case "worse":
            return _either(is_worse and large, is_better and large)
        case "higher":
            return _either(_differs(comparison, 1), _differs(comparison, -1))
        case "lower":
            return _either(_differs(comparison, -1), _differs(comparison, 1))
        case "equivalent":
            return _either(is_equivalent, beyond and (is_better or is_worse))
        case "not worse":
            return _either(is_equivalent or is_better, beyond and is_worse)
        case "not better":
            return _either(is_equivalent or is_worse, beyond and is_better)


def _either(is_found: bool, opposite: bool) -> PredictionVerdict:
    return "as claimed" if is_found else "the opposite" if opposite else "undecided"


def is_within_margin(comparison: Comparison) -> bool:
    """Return whether the result shows that the true difference is smaller than the margin."""
    return (
        comparison.p_equivalent is not None and comparison.p_equivalent < ALPHA and "diverged" not in comparison.verdict
    )


def is_large(comparison: Comparison) -> bool:
    """Return whether the difference is at least as large as the margin. If there is no margin, or if runs diverged,
    every difference is."""
    if comparison.margin is None or comparison.difference is None or "diverged" in comparison.verdict:
        return True
    return abs(comparison.difference) >= comparison.margin


def _is_beyond_margin(comparison: Comparison) -> bool:
    """Return whether the whole confidence interval lies outside the margin. If there is no margin, or if runs diverged,
    every difference counts."""
    if comparison.margin is None or comparison.low is None or comparison.high is None:
        return True
    if "diverged" in comparison.verdict:
        return True
    return comparison.low >= comparison.margin or comparison.high <= -comparison.margin


def _differs(comparison: Comparison, sign: int) -> bool:
    is_different = comparison.is_difference and is_large(comparison)
    return is_different and comparison.difference is not None and comparison.difference * sign > 0
