"""Background of a study: the claims that the study tests, or the topics that explain what its arms change."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

from archlab.config.identity import flatten
from archlab.evidence.claims import Claim, cited, claim_of
from archlab.evidence.ledger import LedgerEntry, about_study
from archlab.evidence.look_up import explaining
from archlab.evidence.pace import Pace, training_pace
from archlab.evidence.results import in_library
from archlab.evidence.studies import ListedStudy
from archlab.evidence.verdicts import ClaimAtScale
from archlab.pricing.units import plural, seconds, si
from archlab.report.ledger import words_over_sizes
from archlab.report.ledger.words import at_scale, found_here
from archlab.report.text_table import FIXED
from archlab.study.forecast import BYTES_PER_DOUBLING, BYTES_PER_TOKEN, Forecast
from archlab.study.formatting import contrast_text, listed
from archlab.study.record import StudySummary

_MOST = 6
"""Maximum number of topics that are listed."""


def claims_of(summary: StudySummary) -> tuple[str, list[LedgerEntry]]:
    """Return the name of the library study to which the summary belongs, and the claims that this study tests. If the
    study is not from the library, the name and the list are empty."""
    name, _ = in_library(summary) or ("", "")
    return name, about_study(name)


def explained(summary: StudySummary) -> list[str]:
    """Return `archlab explain` commands for the first few topics that explain what the arms change."""
    topics = (name for arm in summary.arms for name in explaining(flatten(arm.overrides), flatten(arm.config)))
    return [f"archlab explain {name}" for name in list(dict.fromkeys(topics))[:_MOST]]


def lines(summary: StudySummary) -> Iterator[str]:
    """Yield lines about the study's claims for the terminal."""
    name, entries = claims_of(summary)
    for entry in entries:
        claim = entry.claim
        by = ", ".join(source.cited for source in cited(claim.sources))
        yield f"claim {claim.number} of the ledger, {claim.name}: {claim.statement} ({by})"
        yield f"  predicted: {predicted(name, claim)}"
        yield from (f"  {of_the_ledger(result)}" for result in entry.found)
        yield f"  but: {claim.caveat_in_short}"
        yield f"  in full: archlab ledger {claim.number}"
    if not entries and (commands := explained(summary)):
        yield f"explain: {'; '.join(commands)}"


def of_the_ledger(result: ClaimAtScale) -> str:
    """Return a line about archlab's own run of the study at one scale: its results, and the verdict on the whole
    claim."""
    findings = "; ".join(filter(None, (found_here(result), *map(words_over_sizes.line, result.over_sizes))))
    here = f"the ledger's run, {at_scale(result)}"
    return f"{here}: {findings}; verdict on the claim: {result.verdict}" if findings else f"{here}: not run yet"


_INDENT = "  "


def entry(study: ListedStudy, claims: Sequence[Claim], width: int) -> Iterator[Text]:
    """Yield text that describes a study and lists the claims that it tests, in lines of at most `width` columns."""
    numbers = f"  claim {listed([str(claim.number) for claim in claims])}" if claims else ""
    yield Text.assemble((study.name, "bold"), (numbers, "dim"))
    folded = TextWrapper(width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    for label, text in _labeled_lines(study, claims):
        lines = Text(folded.fill(label + text).replace(FIXED, " "))
        lines.stylize("dim", len(_INDENT), len(_INDENT + label))
        yield lines
    yield Text()


def print_studies(out: Console, studies: Sequence[ListedStudy]) -> None:
    """Print the studies that come with archlab, with the basis of the time estimates."""
    for study in studies:
        for line in entry(study, claim_of(study.name), out.width):
            out.print(line)
    out.print(basis(training_pace().committed))


def basis(pace: Pace | None) -> str:
    """Return a paragraph about the time estimates of `study list`. They are for the machine that produced the committed
    results, or for this machine if `pace` is None."""
    if pace:
        times = (
            f"predicted from FLOPs and the speed of the committed results: {si(pace.tokens_per_second)} tokens/s of "
            f"mini-llama on two cores ({pace.processor}). `archlab hardware --measure` measures this machine instead."
        )
    else:
        times = "for this machine, as `archlab hardware --measure` measured it."
    return (
        f"The default scale is cpu. Times at smoke and cpu are {times} Times at gpu assume the limits of one "
        "H100, which no training reaches. All times cover training only, not start-up, evaluation or timed outcomes. "
        f"A budget in bytes is converted at {BYTES_PER_TOKEN:.1f} bytes per token for a vocabulary of 1,024, and "
        f"{BYTES_PER_DOUBLING} more for each doubling of the vocabulary. For results, see `archlab ledger`."
    )


def predicted(study: str, claim: Claim) -> str:
    """Return predictions such as `swiglu better, relu worse in training_speed, SwiGLU vs ReLU: grows over sizes`."""
    comparisons = [
        f"{_named(prediction.arm)} {prediction.verdict}" + (f" in {prediction.outcome}" if prediction.outcome else "")
        for prediction in claim.expected
        if prediction.study == study
    ]
    trends = [f"{sized.of}: {sized.trend} over sizes" for sized in claim.over_sizes if sized.study == study]
    return ", ".join([*comparisons, *trends])


def _named(arm: str) -> str:
    """Return the name of an arm or contrast, with a colon if the name has several words."""
    return f"{contrast_text(arm)}:" if " " in arm else arm


def _labeled_lines(study: ListedStudy, claims: Iterable[Claim]) -> Iterator[tuple[str, str]]:
    yield "", study.question
    if study.claim:
        yield "claim: ", study.claim
    for claim in claims:
        yield "predicted: ", predicted(study.name, claim)
    if study.primary:
        yield "outcome: ", study.primary
    if study.others:
        yield "also measures: ", ", ".join(study.others)
    yield "takes: ", "; ".join(_takes(scale, forecast) for scale, forecast in study.takes.items())


def _at_least_a_minute(duration: float) -> str:
    """Return the time in words. All times below a minute get the same words, because training then takes only a small
    part of the total time."""
    return "under a minute" if duration < 60 else f"about {seconds(duration)}"


def _takes(scale: str, forecast: Forecast) -> str:
    effort = f"{si(forecast.flops)} FLOPs" if forecast.seconds is None else _at_least_a_minute(forecast.seconds)
    return f"{scale} {plural(forecast.runs, 'run')}, {effort}".replace(" ", FIXED)
