"""What the runs of a study found of one of its comparisons: an arm beside its reference, or a contrast of factors."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from archlab.config.core.base import Base
from archlab.config.core.yaml_text import to_yaml_line
from archlab.evidence.claims import Claim
from archlab.evidence.results import Results, results_name
from archlab.evidence.topics import topics
from archlab.study.arm import said, short_names
from archlab.study.comparisons import PlannedContrast, factor_contrasts
from archlab.study.formatting import difference, effect
from archlab.study.record import Comparison, Heading, OutcomeStatistics


class Compared(Base):
    """One comparison by one outcome."""

    study: str
    arm: str
    """Its name, or that of the contrast."""
    label: str
    """What the arm is called."""
    against: str
    """What it is compared with; empty where nothing was run."""
    outcome: Heading | None
    """null where nothing was run."""
    comparison: Comparison | None
    """null where nothing was run."""
    is_contrast: bool
    """Of crossed factors, and no arm."""
    share: float | None
    """The difference as a share of the reference's mean; null where that says nothing, and where nothing was run."""
    effects: tuple[float, float] | None = None
    """Of an interaction: the two effects of which it is the difference, that which is subtracted first."""

    @property
    def is_counted(self) -> bool:
        """Whether it follows from the config, as the bytes of a cache do: no run could find anything else."""
        return self.outcome is not None and self.outcome.source == "config"

    @property
    def has_sides(self) -> bool:
        """Whether it can be told which side did better: nobody can of a contrast in which runs diverged."""
        return not (self.is_contrast and self.comparison and "diverged" in self.comparison.verdict)

    @property
    def why(self) -> str:
        """What was found, in words: `better`; of what is neither good nor bad `higher` or `lower`."""
        if self.comparison is None:
            return "not run yet"
        if self.comparison.verdict == "differs" and self.comparison.difference:
            return "higher" if self.comparison.difference > 0 else "lower"
        return self.comparison.verdict

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


def compared(results: Results, outcome: str | None = None, margin: float | None = None) -> dict[str, Compared]:
    """By the name of the arm or the contrast; `outcome` and `margin` as in `Results.compared`."""
    measured = results.compared(outcome, margin)
    contrasts = {name: contrast_in_words(found) for name, found in factor_contrasts(results.about.arms).items()}
    labels = {arm.name: arm.label for arm in results.about.arms}
    found: dict[str, Compared] = {}
    for name, one in measured.items():
        if one.comparison is None:
            continue
        heading = results.heading(outcome)
        label, against = contrasts.get(name) or (labels[name], labels[one.comparison.reference])
        found[name] = Compared(
            study=results.about.study,
            arm=name,
            label=label,
            against=against,
            outcome=heading,
            comparison=one.comparison,
            is_contrast=name in contrasts,
            share=_share(heading, one.comparison, measured.get(one.comparison.reference)),
            effects=results.effects(outcome, name),
        )
    return found


def _share(outcome: Heading, comparison: Comparison, reference: OutcomeStatistics | None) -> float | None:
    """Of speeds and bytes, which say little without it."""
    if outcome.unit not in ("tokens/s", "bytes") or reference is None or not reference.mean:
        return None
    return None if comparison.difference is None else comparison.difference / reference.mean


def contrast_in_words(contrast: PlannedContrast) -> tuple[str, str]:
    """What is compared with what: `post-norm on average` and `pre-norm`; of an interaction `effect of no warm-up with
    post-norm` and `that with pre-norm`."""
    *given, (factor, (first, other)) = contrast.factors.items()
    if not given:
        return f"{level_in_words(factor, other)} on average", level_in_words(factor, first)
    ((where, levels),) = given
    one, another = (f"with {level_in_words(where, level)}" for level in levels)
    return f"effect of {level_in_words(factor, other)} {another}", f"that {one}"


def level_in_words(path: str, level: Any) -> str:
    """`post-norm`, where a topic is made by this value; `weight decay 0.3` and `no warm-up`, where one is about the
    field, whatever its value; else as on the command line."""
    about = [topic for _, topic in topics() if path in topic.fields]
    if len(about) == 1 and all(map(_is_number, (level, *about[0].fields.values()))):
        what = _in_a_sentence(about[0].title)
        return f"{what} {to_yaml_line(level)}" if level else f"no {what}"
    titles = [topic.title for topic in about if topic.fields == {path: level}]
    return _in_a_sentence(titles[0]) if titles else said(short_names([path])[path], level)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_a_sentence(title: str) -> str:
    """With a small letter where the first word is not a name of its own, as RoPE is."""
    return title[0].lower() + title[1:] if re.match(r"[A-Z][a-z]+\b", title) else title


def unpredicted(claim: Claim, results: Mapping[str, Results], scale: str) -> Iterator[Compared]:
    """By the outcome that a study's answer is about, and by those of which the claim predicts something for others;
    none of what is counted. Where factors are crossed, their contrasts say what the arms do."""
    for study in claim.studies:
        if ran := results.get(results_name(study, scale)):
            answer = ran.heading(None).name
            predicted = [(one.outcome or answer, one.arm) for one in claim.expected if one.study == study]
            for outcome in dict.fromkeys([answer, *(outcome for outcome, _ in predicted)]):
                found = compared(ran, outcome).values()
                is_crossed = any(one.is_contrast for one in found)
                for one in found:
                    is_asked = (outcome, one.arm) not in predicted and one.is_contrast == is_crossed
                    if is_asked and not one.is_counted:
                        yield one


def is_difference(found: Compared) -> bool:
    """Whether one was found, whose side can be told."""
    differences = ("better", "worse", "differs", "diverged", "reference diverged")
    return found.has_sides and found.comparison is not None and found.comparison.verdict in differences
