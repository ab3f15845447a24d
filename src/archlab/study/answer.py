"""The verdict of a study in one to three sentences: arms that differ from their reference, arms that do not, and arms
whose runs diverged."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from archlab.pricing.units import count, plural
from archlab.study.formatting import (
    difference,
    diverged,
    interval,
    interval_of_equivalence,
    listed,
    margin_of,
    p_equals,
    paired,
    span,
    with_unit,
)
from archlab.study.outcomes.schema import Unit
from archlab.study.record import DIFFERENCES, ArmSummary, Comparison, Difference, Heading, Verdict
from archlab.study.stats import ALPHA

Against = Literal["base", "previous"]
"""Rule that picks the reference of each arm. `base`: the first arm, or the arm that the study's file names. `previous`:
the arm before it."""

_MOST_NAMED = {"previous": 6, "base": 3}
"""Largest number of arms that one sentence names, for each rule of `Against`. A ladder (`previous`) usually has at most
six steps, so a sentence can name all of them. The report's table lists every arm."""

_USUAL = {"bits_per_byte": "the loss", "accuracy": "the share of right answers", "denoising_loss": "the loss"}
"""Usual outcomes, each as the object of a verb. The sentence names any other outcome first."""

_BEATS: dict[Verdict, tuple[str, str]] = {
    "better": ("beats", "beat"),
    "worse": ("loses to", "lose to"),
    "differs": ("differs from", "differ from"),
}


class _Pair(NamedTuple):
    """An arm and its comparison with its reference, for one outcome. `reference` is the label of the reference."""

    arm: ArmSummary
    comparison: Comparison
    reference: str
    outcome: Heading

    @property
    def unit(self) -> Unit:
        return self.outcome.unit

    @property
    def paired(self) -> str:
        return paired([self.comparison], self.outcome.source)

    def amount(self, value: float) -> str:
        return difference(value, self.unit)

    def interval(self, low: float | None, high: float | None) -> str:
        return interval(low, high, self.unit)


def answer(arms: Sequence[ArmSummary], against: Against, outcome: Heading, text: str | None = None) -> str:
    """Return the verdict on all arms that have a reference.

    `outcome` describes the compared values. `text` is a short description of the corpus. If `text` is None, the verdict
    does not mention the corpus.
    """
    labels = {arm.name: arm.label for arm in arms}
    pairs = [_Pair(arm, arm.comparison, labels[arm.comparison.reference], outcome) for arm in arms if arm.comparison]
    if not pairs:
        return "There was nothing to compare: the study has a single arm."
    groups = _groups(pairs, against)
    differing = [_differing(group, verdict, against) for group in groups for verdict in DIFFERENCES]
    same = [describe(group, against) for group in groups for describe in (_equivalent, _not_distinguishable)]
    sentences = [
        "; ".join(filter(None, [*differing, _real_but_small(pairs)])),
        "; ".join(filter(None, same)),
        "; ".join(filter(None, [_diverged(arms), _reference_diverged(pairs), _too_few(pairs)])),
    ]
    sentences = [sentence for sentence in sentences if sentence] or ["nothing could be compared"]
    outcome_title = "" if outcome.name in _USUAL else f", by {outcome.title}"
    text_name = f" of {text}" if text else ""
    sentences[0] = f"At {_conditions(arms)}{text_name}{outcome_title}, {sentences[0]}"
    return " ".join(f"{sentence}." for sentence in sentences)  # labels at the start stay as written


def _groups(pairs: Sequence[_Pair], against: Against) -> list[list[_Pair]]:
    if against == "previous":
        return [list(pairs)]
    references = dict.fromkeys(pair.comparison.reference for pair in pairs)
    return [[pair for pair in pairs if pair.comparison.reference == name] for name in references]


def _with_verdict(pairs: Sequence[_Pair], verdict: Verdict) -> list[_Pair]:
    return [pair for pair in pairs if pair.comparison.verdict == verdict]


def _conditions(arms: Sequence[ArmSummary]) -> str:
    parameters = sorted(arm.parameters for arm in arms)
    tokens = sorted(arm.tokens for arm in arms)
    alike = parameters[-1] <= 1.02 * parameters[0]
    size = count(arms[0].parameters) if alike else span(count(parameters[0]), count(parameters[-1]))
    return f"{size} parameters and {span(count(tokens[0]), count(tokens[-1]))} tokens"


def _tested_by(pairs: Sequence[_Pair]) -> str:
    return paired([pair.comparison for pair in pairs], pairs[0].outcome.source)


def _differing(pairs: Sequence[_Pair], verdict: Difference, against: Against) -> str:
    """Return a clause such as `RoPE lowered the loss by 0.730 bits per byte [0.690, 0.770] and SwiGLU by 0.090 [0.070,
    0.110] (3 paired seeds, each Holm p ≤ 0.01)`. The brackets contain confidence intervals."""
    differing = _with_verdict(pairs, verdict)
    if not differing:
        return ""
    p = max(pair.comparison.p_holm or 0 for pair in differing)
    p_text = f"Holm {p_equals(p)}" if len(differing) == 1 else f"each Holm {p_equals(p, '≤')}"
    proof = f"({_tested_by(differing)}, {p_text})"
    if len(differing) <= _MOST_NAMED[against]:
        return f"{_amounts(differing, f' {_verb(differing[0], against, is_one=True)} by ')} {proof}"
    descending = sorted(differing, key=lambda pair: abs(pair.comparison.difference or 0), reverse=True)
    largest = descending[: _MOST_NAMED[against]]
    number = f"{len(differing)} of {len(pairs)} {'arms' if against == 'base' else 'steps'}"
    does = _verb(differing[0], against, is_one=False)
    return f"{number} {does}, most of all {_amounts(largest, ' by ')} {proof}"


def _verb(pair: _Pair, against: Against, *, is_one: bool) -> str:
    """Return the verb of a difference and its object, such as `beats ReLU`, or `lowered the loss` for the steps of a
    ladder. The direction is that of the values, as in the tables, where a lower loss is a negative difference."""
    verdict = pair.comparison.verdict
    if against == "base":
        return f"{_BEATS[verdict][not is_one]} {pair.reference}"
    what = _USUAL.get(pair.outcome.name, "it")
    if verdict == "differs":
        return f"changed {what}"
    is_lower = (verdict == "better") == (pair.outcome.better == "lower")
    return f"{'lowered' if is_lower else 'raised'} {what}"


def _amounts(pairs: Sequence[_Pair], joint: str) -> str:
    value, rest = _amount(pairs[0])
    first = f"{with_unit(value, pairs[0].unit)} {rest}"
    others = [f"{pair.arm.label} by {' '.join(_amount(pair))}" for pair in pairs[1:]]
    return listed([f"{pairs[0].arm.label}{joint}{first}", *others])


def _amount(pair: _Pair) -> tuple[str, str]:
    """Return the difference and its interval as text, for example (`0.730`, `[0.690, 0.770]`). If the verdict is better
    or worse, the difference is written as a positive amount."""
    comparison = pair.comparison
    sign = -1 if comparison.verdict in ("better", "worse") and (comparison.difference or 0) < 0 else 1
    ends = sorted(sign * end for end in (comparison.low, comparison.high) if end is not None)
    return pair.amount(sign * (comparison.difference or 0)), pair.interval(*ends) if ends else "(no scatter)"


def _real_but_small(pairs: Sequence[_Pair]) -> str:
    different = [pair for verdict in DIFFERENCES for pair in _with_verdict(pairs, verdict)]
    small = [pair for pair in different if (pair.comparison.p_equivalent or 1) < ALPHA]
    if not small:
        return ""
    subject = "the difference of {} is" if len(small) == 1 else "the differences of {} are"
    named = subject.format(listed([pair.arm.label for pair in small]))
    return f"{named} significant, but smaller than the margin of {_margin(small[0])}"


def _equivalent(pairs: Sequence[_Pair], against: Against) -> str:
    same = _with_verdict(pairs, "equivalent")
    if not same:
        return ""
    p = max(pair.comparison.p_equivalent or 0 for pair in same)
    if len(same) == 1:
        only = same[0]
        comparison = only.comparison
        value = f"{only.amount(comparison.difference or 0)}, {interval_of_equivalence(comparison, only.unit)}"
        proof = f"difference {value} over {only.paired}, Holm {p_equals(p)}"
        proof = _identical(only) or proof
        return f"{only.arm.label} and {only.reference} are equivalent within {_margin(only)} ({proof})"
    names, other = _names(same, against)
    proof = f"{_tested_by(same)}, each Holm {p_equals(p, '≤')}"
    return f"{names} are equivalent to {other} within {_margin(same[0])} ({proof})"


def _margin(pair: _Pair) -> str:
    return margin_of(pair.comparison.margin or 0.0, pair.unit)


def _names(pairs: Sequence[_Pair], against: Against) -> tuple[str, str]:
    names = [pair.arm.label for pair in pairs[: _MOST_NAMED[against]]]
    if further := len(pairs) - len(names):
        names.append(plural(further, "other arm" if against == "base" else "other step"))
    return listed(names), pairs[0].reference if against == "base" else "the steps before them"


def _not_distinguishable(pairs: Sequence[_Pair], against: Against) -> str:
    same = _with_verdict(pairs, "not distinguishable")
    identical = [pair for pair in same if _identical(pair)]
    groups = ([pair for pair in same if pair not in identical], identical)
    return "; ".join(_undistinguished(group, against) for group in groups if group)


def _undistinguished(pairs: Sequence[_Pair], against: Against) -> str:
    if len(pairs) == 1:
        only = pairs[0]
        return f"{only.arm.label} is not distinguishable from {only.reference} ({_detail(only)})"
    names, other = _names(pairs, against)
    proof = f"{_tested_by(pairs)}; {_detectable(pairs[: _MOST_NAMED[against]], pairs[_MOST_NAMED[against] :])}"
    return f"{names} are not distinguishable from {other} ({proof})"


def _detectable(named: Sequence[_Pair], further: Sequence[_Pair]) -> str:
    """Return a phrase such as `smallest detectable difference in bits per byte: 0.030 for RMSNorm, 0.045 for GQA and
    0.020 to 0.060 for the others`. Each arm in `named` has its own value. The arms in `further` share one range."""
    parts = []
    for name, group in [*((pair.arm.label, [pair]) for pair in named), ("the others", further)]:
        if effects := [e for pair in group if (e := pair.comparison.smallest_effect) is not None]:
            shown = span(*(difference(end(effects), named[0].unit) for end in (min, max)))
            parts.append(f"{shown} for {name}")
    unit = with_unit("", named[0].unit).strip()
    unit = f" in {unit}" if unit else ""
    return f"smallest detectable difference{unit}: {listed(parts)}" if parts else "identical results"


def _detail(pair: _Pair) -> str:
    comparison = pair.comparison
    if identical := _identical(pair):
        return identical
    if comparison.smallest_effect is None:
        amount = pair.amount(comparison.difference or 0)
        return f"difference {amount} on every seed; a test needs differences that vary between seeds"
    value = with_unit(" ".join(_amount(pair)), pair.unit)
    difference_text = f"difference {value} over {pair.paired}"
    return f"{difference_text}; smallest detectable difference {pair.amount(comparison.smallest_effect)}"


def _identical(pair: _Pair) -> str:
    same = pair.comparison.low == pair.comparison.high == 0
    return f"identical results on {pair.paired}" if same else ""


def _diverged(arms: Sequence[ArmSummary]) -> str:
    parts = [f"{arm.label} {diverged(arm)}" for arm in arms if arm.diverged]
    swept = [arm for arm in arms if not arm.diverged and arm.comparison and arm.comparison.verdict == "diverged"]
    parts += [f"{arm.label} diverged at every value of the sweep" for arm in swept]
    return listed(parts) if parts else ""


def _reference_diverged(pairs: Sequence[_Pair]) -> str:
    parts = [f"{p.arm.label} finished, but {p.reference} diverged" for p in _with_verdict(pairs, "reference diverged")]
    return "; ".join(parts)


def _too_few(pairs: Sequence[_Pair]) -> str:
    names = [pair.arm.label for pair in _with_verdict(pairs, "too few runs")]
    return f"{listed(names)} cannot be compared: too few runs have a value" if names else ""
