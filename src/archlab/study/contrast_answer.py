"""Sentences of a study's answer about crossed factors and about trends over model sizes."""

from collections.abc import Sequence
from typing import NamedTuple

from archlab.pricing.units import count, plural
from archlab.study.arm import setting_text, short_names
from archlab.study.formatting import difference, interval, margin_of, p_equals, paired, span, with_unit
from archlab.study.record import DIFFERENCES, Comparison, FactorContrast, Heading, SizeTrend, Verdict

_NAMED = 3
"""Largest number of interactions that get a sentence each. The largest interactions come first. The report's table
lists all of them."""


class _Interaction(NamedTuple):
    """An interaction: the effect of `changed` under `condition`, compared with its effect under `first_condition`."""

    changed: str
    """Changed setting, for example `warmup=0.1`."""
    condition: str
    """Setting under which `changed` has its effect, for example `norm.placement=post`."""
    first_condition: str
    """Setting with which `condition` is compared: the first level of the same factor, for example
    `norm.placement=pre`."""
    effects: tuple[float, float]
    """Effect of `changed` under `first_condition`, then under `condition`."""
    comparison: Comparison
    outcome: Heading

    @property
    def size(self) -> float:
        return abs(self.comparison.difference or 0)

    def amount(self, value: float) -> str:
        return with_unit(difference(value, self.outcome.unit), self.outcome.unit)

    def interval(self) -> str:
        sign = -1 if (self.comparison.difference or 0) < 0 else 1
        if self.comparison.low is None or self.comparison.high is None:
            return "(no scatter)"
        low, high = sorted((sign * self.comparison.low, sign * self.comparison.high))
        return interval(low, high, self.outcome.unit)


def contrast_answer(contrasts: Sequence[FactorContrast], outcome: Heading) -> list[str]:
    """Return sentences about the interactions. Empty if the study does not cross factors."""
    interactions = [_interaction(contrast, outcome) for contrast in contrasts if len(contrast.factors) > 1]
    real = sorted(_with(interactions, *DIFFERENCES), key=lambda interaction: -interaction.size)
    same, unclear = _with(interactions, "equivalent"), _with(interactions, "not distinguishable")
    missing = _with(interactions, "diverged", "too few runs")
    sentences = [_difference_sentence(interaction) for interaction in real[:_NAMED]]
    if further := len(real[_NAMED:]):
        sentences.append(f"{plural(further, 'smaller interaction')} {'was' if further == 1 else 'were'} also found.")
    if same:
        margin = margin_of(same[0].comparison.margin or 0.0, outcome.unit)
        sentences.append(_summary_sentence(same, "is equivalent to", "equivalent to zero", f"within {margin}"))
    if unclear:
        sentences.append(
            _summary_sentence(
                unclear, "is not distinguishable from", "not distinguishable from zero", _detectable(unclear)
            )
        )
    if missing:
        sentences.append(
            _summary_sentence(missing, "cannot be compared with", "unknown", "runs diverged or are missing")
        )
    return sentences


def _with(interactions: Sequence[_Interaction], *verdicts: Verdict) -> list[_Interaction]:
    return [interaction for interaction in interactions if interaction.comparison.verdict in verdicts]


def _interaction(contrast: FactorContrast, outcome: Heading) -> _Interaction:
    names = short_names(contrast.factors)
    (condition, (first, other)), (factor, (_, level)) = contrast.factors.items()
    assert contrast.comparison
    return _Interaction(
        changed=setting_text(names[factor], level),
        condition=setting_text(names[condition], other),
        first_condition=setting_text(names[condition], first),
        effects=contrast.effects or (0.0, 0.0),
        comparison=contrast.comparison,
        outcome=outcome,
    )


def _difference_sentence(interaction: _Interaction) -> str:
    """Return a sentence such as `warmup=0.1 helps by 0.120 bits per byte more with norm.placement=post than with
    norm.placement=pre`."""
    before, after = interaction.effects
    comparison, size = interaction.comparison, interaction.amount(interaction.size)
    pairs = paired([comparison], interaction.outcome.source)
    proof = f"{interaction.interval()} ({pairs}, Holm {p_equals(comparison.p_holm or 0)})"
    if before * after < 0:
        first_clause = f"{_verb(after, comparison)} by {interaction.amount(abs(after))} with {interaction.condition}"
        second_clause = (
            f"{_verb(before, comparison)} by {interaction.amount(abs(before))} with {interaction.first_condition}"
        )
        return f"{interaction.changed} {first_clause} and {second_clause}, a difference of {size} {proof}."
    more = "more" if abs(after) > abs(before) else "less"
    verb = _verb(before + after, comparison)
    conditions = f"with {interaction.condition} than with {interaction.first_condition}"
    return f"{interaction.changed} {verb} by {size} {more} {conditions} {proof}."


def _verb(effect: float, comparison: Comparison) -> str:
    """Return the verb for an effect: `helps` or `hurts`. If the outcome has no better direction: `raises the outcome`
    or `lowers the outcome`."""
    if comparison.verdict == "differs":
        return "lowers the outcome" if effect < 0 else "raises the outcome"
    is_same_direction = (effect < 0) == ((comparison.difference or 0) < 0)
    return "helps" if is_same_direction == (comparison.verdict == "better") else "hurts"


def _summary_sentence(alike: Sequence[_Interaction], relation: str, all_are: str, proof: str) -> str:
    if len(alike) == 1:
        interaction = alike[0]
        effect = f"The effect of {interaction.changed} with {interaction.condition}"
        return f"{effect} {relation} that with {interaction.first_condition} ({proof})."
    return f"{plural(len(alike), 'interaction')} are {all_are} ({proof})."


def _detectable(unclear: Sequence[_Interaction]) -> str:
    effects = [effect for interaction in unclear if (effect := interaction.comparison.smallest_effect) is not None]
    if not effects:
        return "no scatter to test against"
    unit = unclear[0].outcome.unit
    ends = span(*(difference(end(effects), unit) for end in (min, max)))
    return f"smallest detectable difference {with_unit(ends, unit)}"


def trend_answer(trends: Sequence[SizeTrend], outcome: Heading) -> list[str]:
    """Return a sentence for each trend. Empty if the study has one size."""
    return [_trend_sentence(trend, outcome) for trend in trends]


def _trend_sentence(trend: SizeTrend, outcome: Heading) -> str:
    """Return a sentence such as `The difference between layer and rms grows from 1M to 10M parameters (change 0.050
    ...).`"""
    unit = outcome.unit
    both_arms = f"{trend.label} and {trend.reference}"
    over = f"from {count(trend.sizes[0])} to {count(trend.sizes[-1])} parameters"
    change = trend.comparison
    if change is None or change.difference is None:
        question = f"whether the difference between {both_arms} stays the same {over}"
        return f"This study does not show {question}: runs diverged or are missing."
    pairs = paired([change], outcome.source)
    size = f"{with_unit(difference(change.difference, unit), unit)} {interval(change.low, change.high, unit)}".strip()
    if change.verdict == "equivalent":
        margin = margin_of(change.margin or 0.0, unit)
        return (
            f"The difference between {both_arms} stays the same {over}, within {margin} "
            f"(change {size} over {pairs}, Holm {p_equals(change.p_equivalent or 0)})."
        )
    if trend.trend == "no trend found":
        effect = change.smallest_effect
        detectable = (
            "" if effect is None else f"; smallest detectable change {with_unit(difference(effect, unit), unit)}"
        )
        return (
            f"This study does not show whether the difference between {both_arms} grows or shrinks {over} "
            f"(change {size} over {pairs}{detectable})."
        )
    proof = f"(change {size} over {pairs}, Holm {p_equals(change.p_holm or 0)})"
    return f"The difference between {both_arms} {trend.trend} {over} {proof}."
