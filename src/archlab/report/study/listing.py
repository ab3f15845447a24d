"""How the terminal shows the studies that come with archlab."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import TextWrapper

from rich.text import Text

from archlab.evidence.claims import Claim
from archlab.evidence.results import Pace
from archlab.pricing.units import seconds, si
from archlab.report.text_table import FIXED
from archlab.study.forecast import Forecast, ListedStudy
from archlab.study.formatting import listed, plural

_INDENT = "  "


def entry(study: ListedStudy, claims: Sequence[Claim], width: int) -> Iterator[Text]:
    """A study, and the claims of the ledger that it tests, in lines of at most `width` columns."""
    numbers = f"  claim {listed([str(claim.number) for claim in claims])}" if claims else ""
    yield Text.assemble((study.name, "bold"), (numbers, "dim"))
    folded = TextWrapper(width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    for label, text in _lines(study, claims):
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


def _lines(study: ListedStudy, claims: Iterable[Claim]) -> Iterator[tuple[str, str]]:
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
