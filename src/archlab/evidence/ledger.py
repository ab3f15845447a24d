"""The ledger: every claim, with the results of archlab's committed runs. The results can also be found by topic."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from archlab.config.core.base import Base
from archlab.config.identity import flatten, resolved
from archlab.displayed import Displayed
from archlab.evidence.claims import Claim, Effect, claim_of, claims, find_claim
from archlab.evidence.compared import Compared, unpredicted
from archlab.evidence.look_up import explaining, plain
from archlab.evidence.over_sizes import SizedResult
from archlab.evidence.results import Results, ResultsHeader, RunInfo, committed, digest, results_name
from archlab.evidence.topics import Topic, topics
from archlab.evidence.verdicts import ClaimAtScale, PrimaryFindings, judge, primary_findings
from archlab.study.arm import Arm
from archlab.study.comparisons import factor_contrasts
from archlab.study.design import arms
from archlab.study.study_file import AS_IT_STANDS, unloaded_study


class LedgerEntry(Displayed, Base):
    """A claim, with all results about it."""

    claim: Claim
    found: list[ClaimAtScale]
    """Results at the default scale, followed by the results at every other scale that was run."""
    runs: list[RunInfo]
    """Descriptions of the runs behind the results: their arms and settings, the machine and the date."""
    changed: list[str]
    """Names of results whose study has been changed since it was run."""


class Ledger(Displayed, list[LedgerEntry]):
    """Entries of the ledger."""


def ledger(*chosen: int | str | Claim, results: Mapping[str, Results] | None = None) -> Ledger:
    """Return the ledger entries of the chosen claims, by number or name. Without names, return all in order of their
    numbers. The verdicts use `results`, by default those that come with archlab.

    Raise UserError if there is no such claim.

    >>> archlab.ledger("gates")[0].found[0].verdict
    'mixed'
    """
    listed = [claim if isinstance(claim, Claim) else find_claim(claim) for claim in chosen or claims().values()]
    if results is None:
        return Ledger(_committed_entry(claim.number) for claim in listed)
    primaries = _primaries(results)
    return Ledger(_entry(claim, results, primaries) for claim in listed)


def about(topic: Topic) -> list[LedgerEntry]:
    """Return the entries of the claims that a topic names, with the results that come with archlab."""
    return [_committed_entry(number) for number in topic.claims]


@cache
def _committed_entry(number: int) -> LedgerEntry:
    return _entry(claims()[number], committed(), _committed_primaries())


@cache
def _committed_primaries() -> dict[str, PrimaryFindings]:
    return _primaries(committed())


def _primaries(results: Mapping[str, Results]) -> dict[str, PrimaryFindings]:
    """Return the verdicts on the primary predictions of all claims at each scale, the default scale first."""
    scales = (AS_IT_STANDS, *sorted({ran.about.scale for ran in results.values()} - {AS_IT_STANDS}))
    return {scale: primary_findings(claims().values(), results, scale) for scale in scales}


def about_study(study: str) -> list[LedgerEntry]:
    """Return the ledger entries of the claims that a study tests, with the results of this study only.

    `study` is the name of a study that comes with archlab. Each verdict is still the verdict on the whole claim, which
    may also depend on other studies.
    """
    return [_of_study(entry, study) for claim in claim_of(study) for entry in ledger(claim)]


def _of_study(entry: LedgerEntry, study: str) -> LedgerEntry:
    found = [
        at_scale.model_copy(
            update={
                "judged": [judged for judged in at_scale.judged if judged.expected.study == study],
                "unpredicted": [compared for compared in at_scale.unpredicted if compared.study == study],
                "over_sizes": [result for result in at_scale.over_sizes if result.expected.study == study],
                "rankings": [agreement for agreement in at_scale.rankings if agreement.ranking.study == study],
            }
        )
        for at_scale in entry.found
    ]
    names = {results_name(study, at_scale.scale) for at_scale in found}
    return entry.model_copy(
        update={
            "found": found,
            "runs": [ran for ran in entry.runs if ran.about.study == study],
            "changed": [name for name in entry.changed if name in names],
        }
    )


def _entry(claim: Claim, results: Mapping[str, Results], primaries: Mapping[str, PrimaryFindings]) -> LedgerEntry:
    judged = [judge(claim, results, scale, found) for scale, found in primaries.items()]
    missing = ("not run yet", "no study yet")
    found = [at_scale for at_scale in judged if at_scale.scale == AS_IT_STANDS or at_scale.verdict not in missing]
    names = (results_name(study, at_scale.scale) for at_scale in found for study in claim.studies)
    runs = {name: results[name].run_info for name in names if name in results}
    return LedgerEntry(
        claim=claim,
        found=found,
        runs=list(runs.values()),
        changed=[name for name, ran in runs.items() if _has_changed(ran.about)],
    )


def _has_changed(about: ResultsHeader) -> bool:
    return digest(unloaded_study(about.study, about.scale)) != about.digest


_FEWEST_LETTERS = 3
"""Minimum number of letters of a name that is searched for in texts. Shorter names would match parts of other words."""


def measured(name: str, entries: Sequence[LedgerEntry]) -> Iterator[Compared]:
    """Yield the comparisons about a topic, at the default scale.

    A comparison is about a topic if the topic's `measured` field lists it, or if the topic explains what its arm
    changes. Outcomes that are computed from the config, such as the size of a cache, are left out. Listed comparisons
    come first. Within each group, primary outcomes come before other outcomes. A comparison that several claims predict
    appears once, as the first of them judges it.
    """
    keys = dict(topics())[name].measured
    by_content = dict[object, Compared]()
    for found in _compared(entries):
        if _key(found) in keys or name in _topics_of(found):
            by_content.setdefault((_key(found), found.against, found.outcome), found)
    about_topic = by_content.values()
    yield from sorted(about_topic, key=lambda found: (_key(found) not in keys, not _is_answer(found)))


def measured_over_sizes(name: str, entries: Sequence[LedgerEntry]) -> list[SizedResult]:
    """Return the gains over model sizes that are about a topic, at the default scale. Each appears once, also if
    several claims predict it."""
    found = [sized for entry in entries for sized in entry.found[0].over_sizes if sized.expected.topic == name]
    return list({(sized.expected.study, sized.expected.arm): sized for sized in found}.values())


def _compared(entries: Sequence[LedgerEntry]) -> Iterator[Compared]:
    """Yield every comparison that a claim predicts. Also yield the comparisons without a prediction, for the primary
    outcome only."""
    for entry in entries:
        yield from (found for found in entry.found[0].judged if found.comparison and not found.is_counted)
        yield from _committed_unpredicted(entry.claim.number)


@cache
def _committed_unpredicted(number: int) -> list[Compared]:
    found = unpredicted(claims()[number], committed(), AS_IT_STANDS)
    return [comparison for comparison in found if _is_answer(comparison)]


def _key(comparison: Compared) -> str:
    return f"{comparison.study}/{comparison.arm}"


def _is_answer(comparison: Compared) -> bool:
    return comparison.outcome == committed()[results_name(comparison.study, AS_IT_STANDS)].heading(None)


def published(topic: Topic, entries: Sequence[LedgerEntry]) -> Iterator[Effect]:
    """Yield the published effects about the topic.

    An effect is about the topic if what it compares has a name of the topic, or if its numbers have the topic's title.
    """
    for effect in (effect for entry in entries for effect in entry.claim.published):
        if any(_mentions(effect.of, name) for name in topic.aliases) or any(
            _mentions(text, topic.title) for text in (effect.of, effect.found)
        ):
            yield effect


def _mentions(text: str, name: str) -> bool:
    """Return whether the text has the name as whole words, possibly in the plural. Case, spaces and dashes are
    ignored."""
    letters = plain(name)
    words = r"[\W_]*".join(letters) + "s?"
    return len(letters) >= _FEWEST_LETTERS and bool(re.search(rf"(?<![^\W_]){words}(?![^\W_])", text.lower()))


def _topics_of(comparison: Compared) -> set[str]:
    return topics_of_arms(comparison.study).get(comparison.arm, set())


@cache
def topics_of_arms(study: str) -> dict[str, set[str]]:
    """Map each arm of a study to the topics that explain its changes.

    If the study crosses factors, the contrasts that measure the average effect of one level are also included. They are
    mapped to the topics that explain this level. The result is empty if the study has plug-ins, because no topic
    explains their fields.
    """
    unloaded = unloaded_study(study, AS_IT_STANDS)
    if unloaded.plugins:
        return {}
    study_arms = arms(unloaded)
    found = {arm.name: set(explaining(flatten(arm.overrides), flatten(resolved(arm.config)))) for arm in study_arms}
    for name, contrast in factor_contrasts(study_arms).items():
        if len(contrast.factors) == 1:
            ((factor, (_, level)),) = contrast.factors.items()
            config = _arm_with(study_arms, factor, level).config
            found[name] = set(explaining({factor: level}, flatten(resolved(config))))
    return found


def _arm_with(study_arms: Sequence[Arm], factor: str, level: object) -> Arm:
    return next(arm for arm in study_arms if arm.factors[factor] == level)
