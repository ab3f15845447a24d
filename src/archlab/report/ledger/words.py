"""How the ledger writes what it found: the same in the terminal and on the page."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from textwrap import TextWrapper

from rich.text import Text

from archlab.evidence.claims import Effect, Publication, sources
from archlab.evidence.compared import Compared
from archlab.evidence.ledger import LedgerEntry
from archlab.evidence.results import Ran
from archlab.evidence.verdicts import Agreement, ClaimAtScale, ClaimVerdict, JudgedExpectation
from archlab.pricing.units import count
from archlab.study.formatting import plural, span
from archlab.study.study_file import AS_IT_STANDS

LEDGER = ("claim", "verdict", "said", "found here")
"""Columns of all claims."""

PUBLISHED = ("source", "what was compared", "found", "where")
"""Columns of what others found."""

EXPECTED = ("comparison", "expected", "difference", "result")
"""Columns of what a claim predicts for our studies."""

UNPREDICTED = ("comparison", "difference", "result")
"""Columns of what was found and not predicted."""

UNPREDICTED_HEADING = "Found, but not predicted: it decides nothing"
"""Above that table."""

HOW_SURE = (
    "In brackets, how sure what is said of it here is. Verified: read in its own text; secondary: in transcriptions; "
    "from memory: not read again for this list."
)
"""Above a list of sources."""

INTERVALS = (
    "Intervals are those that decide: of 95%, or of more where a study makes several comparisons (Holm); of what is "
    "equivalent, the one that lies within the margin."
)


_SIDES = {"as claimed": "as claimed", "the opposite": "against", "undecided": "undecided", "not run yet": "not run"}
"""What a finding says of its claim."""


_VERDICTS: dict[ClaimVerdict, str] = {"contradicted": "opposite found at this scale"}
"""Verdicts that are written in other words than JSON has: of small models alone, nothing is contradicted."""


def verdict(found: ClaimAtScale) -> str:
    """Return the verdict on a claim as people read it."""
    return _VERDICTS.get(found.verdict, found.verdict)


def row(entry: LedgerEntry) -> tuple[str, str, str, str]:
    """Return a row of the ledger, under LEDGER."""
    claim = entry.claim
    return f"{claim.number}. {claim.name}", verdicts(entry), claim.in_short, _found_at_all(entry)


def _found_at_all(entry: LedgerEntry) -> str:
    """Return a line per scale, and a last one with the caveat."""
    lines = (("; ".join(filter(None, (found_here(one), beside(one)))), one.scale) for one in entry.found)
    said = [line if scale == AS_IT_STANDS else f"{scale}: {line}" for line, scale in lines if line]
    return "\n".join([*said, f"But: {entry.claim.caveat_in_short}."])


def verdicts(entry: LedgerEntry) -> str:
    """Return `supported`, and on further lines the verdicts of other scales."""
    first, *others = entry.found
    return "\n".join([verdict(first), *(f"{one.scale}: {verdict(one)}" for one in others)])


def in_a_line(entry: LedgerEntry) -> str:
    """Return `4. gates: Gated MLPs beat plain ones. This as a whole, here: undecided; 3 of 5 as claimed. But: ...`.

    The verdict is of all that the claim predicts, which may be more than what a topic is about.
    """
    claim, found = entry.claim, found_here(entry.found[0])
    here = f"{verdicts(entry).replace(chr(10), ', ')}{found and f'; {found}'}"
    return (
        f"{claim.number}. {claim.name}: {claim.statement} This as a whole, here: {here}. But: {claim.caveat_in_short}."
    )


def found_here(found: ClaimAtScale) -> str:
    """How many predictions that could fail were found, and the effect that decides where not all were."""
    return "; ".join(filter(None, (counts(found), decisive(found))))


def counts(found: ClaimAtScale) -> str:
    """`2 of 4 as claimed, 1 undecided, 1 untested`; empty where nothing was run."""
    tested = [one for one in found.judged if not one.is_counted]
    numbers = Counter("untested" if one.untested else _SIDES[one.found] for one in tested)
    if len(tested) == numbers["not run"]:
        return ""
    others = [kind for kind in ("undecided", "against", "untested", "not run") if numbers[kind]]
    said = [f"{numbers['as claimed']} of {len(tested)} as claimed", *(f"{numbers[kind]} {kind}" for kind in others)]
    return ", ".join(said)


def decisive(found: ClaimAtScale) -> str:
    """The first prediction against the claim, or else that is undecided, if any: `undecided: GLU, loss on held-out
    text, 0.026 [0.006, 0.046] bits per byte`."""
    tested = [one for one in found.judged if one.outcome and not one.is_counted and one.found != "as claimed"]
    if not tested:
        return ""
    first = min(tested, key=lambda one: (one.found != "the opposite", one.untested is not None))
    side = "could not be tested" if first.untested else _SIDES[first.found]
    return f"{side}: {first.label}, {first.outcome.title if first.outcome else ''}, {first.effect}"


def beside(found: ClaimAtScale) -> str:
    """`3 differences not predicted`; empty where there are none."""
    return f"{plural(len(found.unpredicted), 'difference')} not predicted" if found.unpredicted else ""


def published(effect: Effect) -> tuple[str, str, str, str]:
    """Under PUBLISHED."""
    scale = f"{effect.scale}; " if effect.scale else ""
    return sources()[effect.source].cited, effect.of, effect.found, f"{scale}{effect.read}"


def untested(found: ClaimAtScale) -> list[str]:
    """Why predictions could not be tested: a line per reason, each after what it is about."""
    about: dict[str, list[str]] = {}
    for one in found.judged:
        if one.untested:
            about.setdefault(one.untested, []).append(one.label)
    return [f"Could not be tested here: {', '.join(labels)}. {reason}" for reason, labels in about.items()]


def expected(judged: JudgedExpectation) -> tuple[str, str, str, str]:
    """Under EXPECTED."""
    needs = judged.expected.verdict in ("equivalent", "not worse", "not better")
    margin = judged.expected.margin or (judged.comparison.margin if judged.comparison and needs else None)
    margin = f" (margin {margin:g})" if margin else ""
    return _what(judged, judged.expected.outcome), f"{judged.expected.verdict}{margin}", judged.effect, judged.why


def not_predicted(found: Compared) -> tuple[str, str, str]:
    """Under UNPREDICTED."""
    return _what(found), found.effect, found.why


def _what(found: Compared, outcome: str | None = None) -> str:
    """`gates: SwiGLU against ReLU, loss on held-out text`; `outcome`: what it is called where nothing was run."""
    against = f" against {found.against}" if found.against else ""
    outcome = found.outcome.title if found.outcome else outcome
    return f"{found.study}: {found.label}{against}" + (f", {outcome}" if outcome else "")


def measured_line(found: Compared) -> str:
    """`gates: SwiGLU against ReLU, loss on held-out text: -0.047 [-0.060, -0.034] bits per byte, as claimed: ...`."""
    return f"{_what(found)}: {f'{found.effect}, ' if found.effect else ''}{found.why}"


def published_line(effect: Effect) -> str:
    """`Shazeer 2020, perplexity of GEGLU against ReLU: 1.942 against 1.997 (T5-Base; verified)`."""
    source, of, found, where = published(effect)
    return f"{source}, {of}: {found} ({where})"


def ranked(found: Agreement) -> str:
    """One sentence about an order that was published."""
    source = sources()[found.ranking.source].cited
    of = f"{source} ({found.ranking.what}), {plural(found.arms, 'arm')}"
    if found.rho is None:
        return f"Too few arms to compare the order with {of}."
    around = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"Rank correlation with {of}: {found.rho:.2f}{around}."


def said(source: Publication) -> str:
    """`Kaplan and others 2020, Scaling Laws for Neural Language Models, arXiv 2001.08361 (verified)`."""
    parts = [part for part in (f"{source.authors} {source.year}", source.title, source.where) if part]
    return f"{', '.join(parts)} ({source.certainty})"


def where(ran: Ran) -> str:
    """What repeats a study, how large it is, and on what it was run: `archlab study run gates (265K to 267K parameters,
    512K training tokens, 5 seeds; Intel Xeon, cpu, float32, torch 2.13.0, commit 0d6482e, 2026-11-23)`."""
    found = ran.about.environment
    machine = [found.get(name) for name in ("processor", "device", "dtype")]
    known = dict.fromkeys(str(part) for part in machine if part)
    commit = str(found.get("commit") or "?").replace("-dirty", " with changes")
    how = [*known, f"torch {found.get('torch', '?')}", f"commit {commit}", ran.about.date]
    return f"{ran.about.command} ({_size([ran])}; {', '.join(how)})"


def scale(entries: Sequence[LedgerEntry]) -> str:
    """Of what all verdicts are."""
    runs = [ran for entry in entries for ran in entry.runs]
    said = "Every verdict is of the scale that was run, and of no other"
    if not runs:
        return f"{said}."
    return f"{said}: here {_size(runs)}."


def _size(runs: Sequence[Ran]) -> str:
    arms = [arm for ran in runs for arm in ran.about.arms]

    def ends(values: Iterable[int]) -> str:
        known = list(values)
        return span(count(min(known)), count(max(known)))

    parameters, tokens = ends(arm.parameters for arm in arms), ends(arm.tokens for arm in arms)
    return f"{parameters} parameters, {tokens} training tokens, {ends(ran.seeds for ran in runs)} seeds"


def at_scale(found: ClaimAtScale) -> str:
    """`as the studies stand`, `at the scale gpu`."""
    return "as the studies stand" if found.scale == AS_IT_STANDS else f"at the scale {found.scale}"


def commands(entry: LedgerEntry) -> list[str]:
    """What runs its studies."""
    return [f"archlab study run {study}" for study in entry.claim.studies]


def has_changed(entry: LedgerEntry) -> str:
    """A sentence where studies were changed after they were run; else empty."""
    if not entry.changed:
        return ""
    return f"{', '.join(entry.changed)}: changed since it was run, so that these results are of the study as it was."


_NUMBER = 3
"""Columns of the number and of the space behind it."""


def listed(entries: Sequence[LedgerEntry], width: int) -> Iterator[Text]:
    """In lines of at most `width` columns."""
    name_width = max(len(entry.claim.name) for entry in entries) + 2
    verdict_width = max(len(verdict(one)) for entry in entries for one in entry.found) + 2
    for entry in entries:
        texts = [("said", entry.claim.in_short)]
        for one in entry.found:
            as_it_stands = one.scale == AS_IT_STANDS
            number, name = (f"{entry.claim.number:>2}", entry.claim.name) if as_it_stands else ("", one.scale)
            head = f"{number:<{_NUMBER}}{name:<{name_width}}{verdict(one):<{verdict_width}}"
            yield from _folded(head, counts(one), width, "bold", len(head) - verdict_width)
            here = "; ".join(filter(None, (decisive(one), beside(one))))
            for label, text in [*texts, *([("here", here)] if here else [])]:
                yield from _folded(f"{'':<{_NUMBER}}{label}  ", text, width, "dim", _NUMBER + len(label))
            texts = []
        yield from _folded(f"{'':<{_NUMBER}}but   ", f"{entry.claim.caveat_in_short}", width, "dim", _NUMBER + 3)
        yield Text()


def _folded(head: str, text: str, width: int, style: str, end: int) -> Iterator[Text]:
    """The text beside its head, of which all to `end` is in that style."""
    folded = TextWrapper(width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
    first, *others = folded.wrap(text) or [head.rstrip()]
    line = Text(first)
    line.stylize(style, _NUMBER, end)
    yield line
    yield from map(Text, others)
