"""The ledger: every claim beside what our committed runs say of it, at each scale that was run."""

from collections.abc import Iterable, Mapping

from archlab.config.core.base import Base
from archlab.evidence.read import claim_of, claims
from archlab.evidence.results import About, Ran, Results, committed, digest, results_name
from archlab.evidence.schema import Claim
from archlab.evidence.verdicts import ClaimAtScale, judge
from archlab.study.scales import AS_IT_STANDS, library_study


class Entry(Base):
    """A claim and what was found."""

    claim: Claim
    found: list[ClaimAtScale]
    """As the studies stand first; of other scales those that were run."""
    runs: list[Ran]
    """Of the results that this is computed from: what was run where, and when."""
    changed: list[str]
    """Names of results whose study asks for other runs today."""


def ledger(results: Mapping[str, Results] | None = None, chosen: Iterable[Claim] | None = None) -> list[Entry]:
    """By the numbers of the claims. `results` None: those that come with archlab; `chosen` None: all claims."""
    known = committed() if results is None else results
    scales = sorted({one.about.scale for one in known.values()} - {AS_IT_STANDS})
    return [_entry(claim, known, scales) for claim in (claims().values() if chosen is None else chosen)]


def about_study(study: str) -> list[Entry]:
    """The claims that a study which comes with archlab is about, with what was found by its own runs.

    Verdicts are those on the whole claims, of which other studies may test a part.
    """
    return [_of_study(entry, study) for entry in ledger(chosen=claim_of(study))]


def _of_study(entry: Entry, study: str) -> Entry:
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


def _entry(claim: Claim, results: Mapping[str, Results], scales: Iterable[str]) -> Entry:
    judged = [judge(claim, results, scale) for scale in (AS_IT_STANDS, *scales)]
    found = [one for one in judged if one.scale == AS_IT_STANDS or one.verdict not in ("not run yet", "no study yet")]
    named = (results_name(study, one.scale) for one in found for study in claim.studies)
    runs = {name: results[name].ran for name in named if name in results}
    return Entry(
        claim=claim,
        found=found,
        runs=list(runs.values()),
        changed=[name for name, ran in runs.items() if _has_changed(ran.about)],
    )


def _has_changed(about: About) -> bool:
    return digest(library_study(about.study, about.scale)) != about.digest
