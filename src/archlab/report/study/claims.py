"""What is known of what a study asks: the claims that it is about, or the topics that explain what its arms change."""

from collections.abc import Iterator

from archlab.config.identity import flatten
from archlab.evidence.claims import cited
from archlab.evidence.ledger import LedgerEntry, about_study
from archlab.evidence.look_up import explaining
from archlab.evidence.results import in_library
from archlab.evidence.verdicts import ClaimAtScale
from archlab.report.ledger.words import at_scale, found_here, verdict
from archlab.report.study.listing import predicted
from archlab.study.record import StudySummary

_MOST = 6
"""Topics that are named."""


def claims_of(summary: StudySummary) -> tuple[str, list[LedgerEntry]]:
    """The name of the study where it comes with archlab, whatever its scale, and the claims that it is about; else
    nothing."""
    name, _ = in_library(summary) or ("", "")
    return name, about_study(name)


def explained(summary: StudySummary) -> list[str]:
    """Commands that explain what arms change, the first few."""
    every = (name for arm in summary.arms for name in explaining(flatten(arm.overrides), flatten(arm.config)))
    return [f"archlab explain {name}" for name in list(dict.fromkeys(every))[:_MOST]]


def lines(summary: StudySummary) -> Iterator[str]:
    """For the terminal."""
    name, entries = claims_of(summary)
    for entry in entries:
        claim = entry.claim
        by = ", ".join(source.cited for source in cited(claim.sources))
        yield f"claim {claim.number} of the ledger, {claim.name}: {claim.statement} ({by})"
        yield f"  predicted: {predicted(name, claim)}"
        yield from (f"  {of_the_ledger(found)}" for found in entry.found)
        yield f"  but: {claim.caveat_in_short}"
        yield f"  in full: archlab ledger {claim.number}"
    if not entries and (commands := explained(summary)):
        yield f"explain: {'; '.join(commands)}"


def of_the_ledger(found: ClaimAtScale) -> str:
    """What the run that comes with archlab found of the study, and the verdict on the whole claim."""
    said = found_here(found)
    here = f"the ledger's run, {at_scale(found)}"
    return f"{here}: {said}; verdict on the claim: {verdict(found)}" if said else f"{here}: not run yet"
