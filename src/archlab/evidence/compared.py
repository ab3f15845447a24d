"""Results of the comparisons in a study. An arm is compared with its reference; if the study crosses factors, a
contrast compares factor levels."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from archlab.config.core.base import Base
from archlab.config.core.yaml_text import to_yaml_line
from archlab.evidence.claims import Claim
from archlab.evidence.results import Results, results_name
from archlab.evidence.topics import topics
from archlab.study.arm import setting_text, short_names
from archlab.study.comparisons import PlannedContrast, factor_contrasts
from archlab.study.formatting import difference, effect, with_level
from archlab.study.record import Comparison, Heading, OutcomeStatistics

_FEWEST_STEPS = 3
"""A ladder has more arms than this."""


class Compared(Base):
    """Result of one comparison in a study, for one outcome."""

    study: str
    arm: str
    """Name of the arm or of the contrast."""
    label: str
    """Label of the arm or of the contrast, as shown to readers."""
    against: str
    """Label of the reference, or of the other side of the contrast. Empty if the study has not been run."""
    outcome: Heading | None
    """Outcome whose values are compared. null if the study has not been run."""
    comparison: Comparison | None
    """Statistics of the comparison. null if the study has not been run."""
    is_contrast: bool
    """Whether a contrast of crossed factors is compared, rather than an arm with its reference."""
    share: float | None
    """Difference divided by the mean of the reference. null unless the outcome is a speed or a number of bytes, and the
    difference is known."""
    effects: tuple[float, float] | None = None
    """The two effects that an interaction compares. The interaction is the second effect minus the first. null if the
    comparison is not an interaction."""

    @property
    def is_counted(self) -> bool:
        """Whether the outcome is computed from the config, such as the size of the KV cache in bytes. Runs cannot
        change such an outcome."""
        return self.outcome is not None and self.outcome.source == "config"

    @property
    def has_sides(self) -> bool:
        """Whether the comparison can have a better and a worse side. False for a contrast if any of its runs
        diverged."""
        return not (self.is_contrast and self.comparison and "diverged" in self.comparison.verdict)

    @property
    def why(self) -> str:
        """Result in words, such as `better`. For an outcome of which a higher value is neither better nor worse, the
        result is `higher` or `lower`."""
        if self.comparison is None:
            return "not run yet"
        if self.comparison.verdict == "differs" and self.comparison.difference:
            return "higher" if self.comparison.difference > 0 else "lower"
        return self.comparison.verdict

    @property
    def decided_within(self) -> bool:
        """Whether the interval of the equivalence test decides, which must lie within the margin. Otherwise, the
        interval of the test for a difference decides."""
        return self.comparison is not None and self.comparison.verdict == "equivalent"

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Confidence interval on which the verdict is based."""
        if self.comparison is None:
            return None, None
        if self.decided_within:
            return self.comparison.within_low, self.comparison.within_high
        return self.comparison.low, self.comparison.high

    @property
    def confidence(self) -> float | None:
        """Confidence level of `interval`. None if there is no interval."""
        if self.comparison is None:
            return None
        return self.comparison.within_confidence if self.decided_within else self.comparison.confidence

    @property
    def effect(self) -> str:
        """Difference and its confidence interval, such as `-0.021 [-0.030, -0.012] bits per byte`. The level of the
        interval is named if it is not 95%.

        Empty if the difference is unknown.
        """
        if self.outcome is None or self.comparison is None or self.comparison.difference is None:
            return ""
        text = effect(self.comparison.difference, *self.interval, self.outcome.unit)
        text = with_level(text, self.confidence)
        if self.effects:
            first, other = (difference(value, self.outcome.unit) for value in self.effects)
            return f"{text} ({other} minus {first})"
        return text if self.share is None else f"{text} ({self.share:+.1%})"


def compared(
    results: Results,
    outcome: str | None = None,
    margin: float | None = None,
    only: str | None = None,
    level: float | None = None,
) -> dict[str, Compared]:
    """Return all comparisons, keyed by the name of the arm or contrast. The other arguments are passed to
    `Results.compared`."""
    measured = results.compared(outcome, margin, only, level)
    contrasts = {name: contrast_in_words(contrast) for name, contrast in factor_contrasts(results.about.arms).items()}
    labels = {arm.name: arm.label for arm in results.about.arms}
    comparisons: dict[str, Compared] = {}
    for name, statistics in measured.items():
        if statistics.comparison is None:
            continue
        heading = results.heading(outcome)
        label, against = contrasts.get(name) or (labels[name], _reference(results, name, labels))
        comparisons[name] = Compared(
            study=results.about.study,
            arm=name,
            label=label,
            against=against,
            outcome=heading,
            comparison=statistics.comparison,
            is_contrast=name in contrasts,
            share=_share(heading, statistics.comparison, measured.get(statistics.comparison.reference)),
            effects=results.effects(outcome, name),
        )
    return comparisons


def _reference(results: Results, name: str, labels: Mapping[str, str]) -> str:
    """Return the label of an arm's reference. In a ladder, where every arm changes the one before it, it is `the step
    before (RoPE)`."""
    references = {arm.name: arm.reference for arm in results.about.arms}
    label = labels[references[name] or ""]
    is_ladder = len(references) > _FEWEST_STEPS and list(references.values()) == [None, *references][: len(references)]
    return f"the step before ({label})" if is_ladder else label


def _share(outcome: Heading, comparison: Comparison, reference: OutcomeStatistics | None) -> float | None:
    """Return the difference divided by the mean of the reference, for speeds and bytes. For these outcomes, the
    difference alone means little. Return None for all other outcomes."""
    if outcome.unit not in ("tokens/s", "bytes") or reference is None or not reference.mean:
        return None
    return None if comparison.difference is None else comparison.difference / reference.mean


def contrast_in_words(contrast: PlannedContrast) -> tuple[str, str]:
    """Return the two sides of a contrast in words, such as `post-norm averaged over the other settings` and
    `pre-norm`.

    If the contrast is an interaction, its sides are texts such as `effect of no warm-up with post-norm` and `that with
    pre-norm`.
    """
    *other_factors, (factor, (first, other)) = contrast.factors.items()
    if not other_factors:
        return f"{level_in_words(factor, other)} averaged over the other settings", level_in_words(factor, first)
    ((other_factor, levels),) = other_factors
    at_first, at_second = (f"with {level_in_words(other_factor, level)}" for level in levels)
    return f"effect of {level_in_words(factor, other)} {at_second}", f"that {at_first}"


def level_in_words(path: str, level: Any) -> str:
    """Return the level of a factor in words. `path` is the config field, and `level` is its value.

    If a topic is about this value, return the title of the topic, such as `post-norm`. If a topic is about the field
    with any number, return text like `weight decay 0.3` or `no warm-up`. Otherwise, return text like `constant
    schedule` if the level is a word, and a setting as on the command line if it is not.
    """
    about = [topic for _, topic in topics() if path in topic.fields]
    if len(about) == 1 and all(map(_is_number, (level, *about[0].fields.values()))):
        what = _in_a_sentence(about[0].title)
        return f"{what} {to_yaml_line(level)}" if level else f"no {what}"
    titles = [topic.title for topic in about if topic.fields == {path: level}]
    if titles:
        return _in_a_sentence(titles[0])
    name = short_names([path])[path]
    if isinstance(level, str):
        return f"{level} {name.rpartition('.')[2].replace('_', ' ')}"
    return setting_text(name, level)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_a_sentence(title: str) -> str:
    """Return the title with a lowercase first letter, unless it begins with a name such as RoPE."""
    return title[0].lower() + title[1:] if re.match(r"[A-Z][a-z]+\b", title) else title


def unpredicted(claim: Claim, results: Mapping[str, Results], scale: str) -> Iterator[Compared]:
    """Yield the comparisons for which the claim makes no prediction, in the studies of its predictions.

    They cover the primary outcome, and every outcome for which the claim makes a prediction about another arm. Outcomes
    that are computed from the config are left out. If a study crosses factors, contrasts are yielded instead of arms.
    """
    for study in dict.fromkeys(prediction.study for prediction in claim.expected):
        if ran := results.get(results_name(study, scale)):
            answer = ran.heading(None).name
            predicted = [(p.outcome or answer, p.arm) for p in claim.expected if p.study == study]
            for outcome in dict.fromkeys([answer, *(outcome for outcome, _ in predicted)]):
                comparisons = compared(ran, outcome).values()
                is_crossed = any(comparison.is_contrast for comparison in comparisons)
                for comparison in comparisons:
                    is_new = (outcome, comparison.arm) not in predicted and comparison.is_contrast == is_crossed
                    if is_new and not comparison.is_counted:
                        yield comparison


def differs_or_diverged(found: Compared) -> bool:
    """Return whether the sides differ or one has diverged. This is False for a contrast if any of its runs diverged."""
    comparison = found.comparison if found.has_sides else None
    return comparison is not None and (comparison.is_difference or "diverged" in comparison.verdict)
