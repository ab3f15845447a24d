"""What is known of what a study asks: the claims that it is about, or the topics that explain what its arms change."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import TextWrapper

from rich.text import Text

from archlab.config.identity import flatten
from archlab.evidence.claims import Claim, cited
from archlab.evidence.ledger import LedgerEntry, about_study
from archlab.evidence.look_up import explaining
from archlab.evidence.results import Pace, in_library
from archlab.evidence.verdicts import ClaimAtScale
from archlab.pricing.units import seconds, si
from archlab.report.ledger.words import at_scale, found_here, verdict
from archlab.report.text_table import FIXED
from archlab.study.forecast import Forecast, ListedStudy
from archlab.study.formatting import listed, plural
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


_INDENT = "  "


def entry(study: ListedStudy, claims: Sequence[Claim], width: int) -> Iterator[Text]:
    """A study, and the claims of the ledger that it tests, in lines of at most `width` columns."""
    numbers = f"  claim {listed([str(claim.number) for claim in claims])}" if claims else ""
    yield Text.assemble((study.name, "bold"), (numbers, "dim"))
    folded = TextWrapper(width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    for label, text in _labelled_lines(study, claims):
        lines = Text(folded.fill(label + text).replace(FIXED, " "))
        lines.stylize("dim", len(_INDENT), len(_INDENT + label))
        yield lines
    yield Text()


def basis(pace: Pace | None) -> str:
    """What the times are of; `pace` None: of this machine."""
    if pace:
        found = (
            "foretold by FLOPs from the speed of the committed results, "
            f"{si(pace.tokens_per_second)} tokens of mini-llama in a second on two cores ({pace.processor}); "
            "`archlab hardware --measure` times this machine instead."
        )
    else:
        found = "on this machine, as `archlab hardware --measure` found it."
    return (
        f"cpu is the study as it stands. Times of smoke and cpu: {found} Those of gpu: at the limits of one H100, "
        "which no training reaches. All are of training alone: starting runs, evaluation and what is timed come on "
        "top. A budget in bytes is counted as 2.6 bytes to a token where there are 1,024, and 0.45 more for every "
        "doubling of the vocabulary. What was found: archlab ledger"
    )


def predicted(study: str, claim: Claim) -> str:
    """`swiglu better, relu worse in training_speed`."""
    said = (
        f"{one.arm} {one.verdict}" + (f" in {one.outcome}" if one.outcome else "")
        for one in claim.expected
        if one.study == study
    )
    return ", ".join(said)


def _labelled_lines(study: ListedStudy, claims: Iterable[Claim]) -> Iterator[tuple[str, str]]:
    """Label and text."""
    yield "", study.question
    if study.claim:
        yield "said: ", study.claim
    for claim in claims:
        yield "predicted: ", predicted(study.name, claim)
    if study.primary:
        yield "is about: ", study.primary
    if study.others:
        yield "measures: ", ", ".join(study.others)
    yield "takes: ", "; ".join(_takes(scale, found) for scale, found in study.takes.items())


def _at_least_a_minute(found: float) -> str:
    """Below it, what comes on top of training is the larger part."""
    return "under a minute" if found < 60 else f"about {seconds(found)}"


def _takes(scale: str, found: Forecast) -> str:
    """Runs, and the time or else the FLOPs that they take."""
    took = f"{si(found.flops)} FLOPs" if found.seconds is None else _at_least_a_minute(found.seconds)
    return f"{scale} {plural(found.runs, 'run')}, {took}".replace(" ", FIXED)
