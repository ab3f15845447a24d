"""The ledger: every claim beside what our committed runs say of it, and what of that is about one topic."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from archlab.config.core.base import Base
from archlab.config.identity import flatten, resolved
from archlab.evidence.claims import Claim, Effect, claim_of, claims
from archlab.evidence.compared import Compared, unpredicted
from archlab.evidence.look_up import explaining, plain
from archlab.evidence.results import Ran, Results, ResultsHeader, committed, digest, results_name
from archlab.evidence.topics import Topic, topics
from archlab.evidence.verdicts import ClaimAtScale, judge
from archlab.study.arm import Arm
from archlab.study.comparisons import factor_contrasts
from archlab.study.design import arms
from archlab.study.study_file import AS_IT_STANDS, library_study


class LedgerEntry(Base):
    """A claim and what was found."""

    claim: Claim
    found: list[ClaimAtScale]
    """As the studies stand first; of other scales those that were run."""
    runs: list[Ran]
    """Of the results that this is computed from: what was run where, and when."""
    changed: list[str]
    """Names of results whose study asks for other runs today."""


def ledger(results: Mapping[str, Results] | None = None, chosen: Iterable[Claim] | None = None) -> list[LedgerEntry]:
    """By the numbers of the claims. `results` None: those that come with archlab; `chosen` None: all claims."""
    known = committed() if results is None else results
    scales = sorted({one.about.scale for one in known.values()} - {AS_IT_STANDS})
    return [_entry(claim, known, scales) for claim in (claims().values() if chosen is None else chosen)]


def about_study(study: str) -> list[LedgerEntry]:
    """The claims that a study which comes with archlab is about, with what was found by its own runs.

    Verdicts are those on the whole claims, of which other studies may test a part.
    """
    return [_of_study(entry, study) for entry in ledger(chosen=claim_of(study))]


def _of_study(entry: LedgerEntry, study: str) -> LedgerEntry:
    found = [
        one.model_copy(
            update={
                "judged": [judged for judged in one.judged if judged.expected.study == study],
                "unpredicted": [found for found in one.unpredicted if found.study == study],
                "rankings": [found for found in one.rankings if found.ranking.study == study],
            }
        )
        for one in entry.found
    ]
    names = {results_name(study, one.scale) for one in found}
    return entry.model_copy(
        update={
            "found": found,
            "runs": [ran for ran in entry.runs if ran.about.study == study],
            "changed": [name for name in entry.changed if name in names],
        }
    )


def _entry(claim: Claim, results: Mapping[str, Results], scales: Iterable[str]) -> LedgerEntry:
    judged = [judge(claim, results, scale) for scale in (AS_IT_STANDS, *scales)]
    found = [one for one in judged if one.scale == AS_IT_STANDS or one.verdict not in ("not run yet", "no study yet")]
    named = (results_name(study, one.scale) for one in found for study in claim.studies)
    runs = {name: results[name].ran for name in named if name in results}
    return LedgerEntry(
        claim=claim,
        found=found,
        runs=list(runs.values()),
        changed=[name for name, ran in runs.items() if _has_changed(ran.about)],
    )


def _has_changed(about: ResultsHeader) -> bool:
    return digest(library_study(about.study, about.scale)) != about.digest


_LETTERS = 3
"""Of a name that is looked for in a sentence, at least."""


def measured(name: str, entries: Sequence[LedgerEntry]) -> Iterator[Compared]:
    """Comparisons of arms that change to the topic of that name, and of what it names itself, as the studies stand;
    none that follows from the config, as a cache's size does. What it names comes first, and what a study's answer is
    about before other outcomes."""
    named = dict(topics())[name].measured
    found = [one for one in _compared(entries) if _called(one) in named or name in _topics_of(one)]
    yield from sorted(found, key=lambda one: (_called(one) not in named, not _is_answer(one)))


def _compared(entries: Sequence[LedgerEntry]) -> Iterator[Compared]:
    """All that claims predict; of the rest what is about the outcome of the study's answer."""
    for entry in entries:
        yield from (one for one in entry.found[0].judged if one.comparison and not one.is_counted)
        yield from (one for one in unpredicted(entry.claim, committed(), AS_IT_STANDS) if _is_answer(one))


def _called(found: Compared) -> str:
    """As in `Topic.measured`."""
    return f"{found.study}/{found.arm}"


def _is_answer(found: Compared) -> bool:
    return found.outcome == committed()[results_name(found.study, AS_IT_STANDS)].heading(None)


def published(topic: Topic, entries: Sequence[LedgerEntry]) -> Iterator[Effect]:
    """Effects that name the topic."""
    spellings = [plain(text) for text in (topic.title, *topic.aliases)]
    for effect in (one for entry in entries for one in entry.claim.published):
        said = plain(f"{effect.of} {effect.found}")
        if any(spelling in said for spelling in spellings if len(spelling) >= _LETTERS):
            yield effect


def _topics_of(found: Compared) -> set[str]:
    return _topics_of_study(found.study).get(found.arm, set())


@cache
def _topics_of_study(study: str) -> dict[str, set[str]]:
    """Arm -> the topics that explain what it changes; where factors are crossed, contrast -> those of the level whose
    effect it is on average."""
    known = arms(library_study(study, AS_IT_STANDS))
    found = {arm.name: set(explaining(flatten(arm.overrides), flatten(resolved(arm.config)))) for arm in known}
    for name, contrast in factor_contrasts(known).items():
        if len(contrast.factors) == 1:
            ((factor, (_, level)),) = contrast.factors.items()
            found[name] = set(explaining({factor: level}, flatten(resolved(_at(known, factor, level).config))))
    return found


def _at(known: Sequence[Arm], factor: str, level: object) -> Arm:
    return next(arm for arm in known if arm.factors[factor] == level)
