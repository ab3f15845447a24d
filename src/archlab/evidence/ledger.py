"""The ledger: every claim beside what our committed runs say of it, at each scale that was run."""

from collections.abc import Iterable, Mapping

from archlab.config.base import Base
from archlab.evidence.read import claims
from archlab.evidence.results import About, Results, committed, digest, results_name
from archlab.evidence.schema import Claim
from archlab.evidence.verdicts import ClaimAtScale, judge
from archlab.study.scales import AS_IT_STANDS, library_study


class Entry(Base):
    """A claim and what was found."""

    claim: Claim
    found: list[ClaimAtScale]
    """As the studies stand first; of other scales those that were run."""
    runs: list[About]
    """Of the results that this is computed from: what was run where, and when."""
    changed: list[str]
    """Names of results whose study asks for other runs today."""


def ledger(results: Mapping[str, Results] | None = None, chosen: Iterable[Claim] | None = None) -> list[Entry]:
    """By the numbers of the claims. `results` None: those that come with archlab; `chosen` None: all claims."""
    known = committed() if results is None else results
    changed = [name for name, one in known.items() if _has_changed(one.about)]
    scales = sorted({one.about.scale for one in known.values()} - {AS_IT_STANDS})
    return [_entry(claim, known, scales, changed) for claim in (claims().values() if chosen is None else chosen)]


def _entry(claim: Claim, results: Mapping[str, Results], scales: Iterable[str], changed: Iterable[str]) -> Entry:
    judged = [judge(claim, results, scale) for scale in (AS_IT_STANDS, *scales)]
    found = [one for one in judged if one.scale == AS_IT_STANDS or one.verdict not in ("not run yet", "no study yet")]
    names = [results_name(study, one.scale) for one in found for study in claim.studies]
    return Entry(
        claim=claim,
        found=found,
        runs=[results[name].about for name in names if name in results],
        changed=[name for name in names if name in changed],
    )


def _has_changed(about: About) -> bool:
    return digest(library_study(about.study, about.scale)) != about.digest
