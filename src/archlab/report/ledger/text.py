"""The ledger as text."""

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

from archlab.evidence.claims import mistakes
from archlab.evidence.ledger import LedgerEntry
from archlab.report.ledger import words
from archlab.study.study_file import AS_IT_STANDS


def print_ledger(out: Console, entries: Sequence[LedgerEntry]) -> None:
    """Print a few lines on each claim."""
    if not entries:
        return
    for line in listed(entries, out.width):
        out.print(line, soft_wrap=True)
    notes = (words.scale(entries), words.INTERVALS, words.LIMITS)
    out.print(f"{' '.join(notes)} One claim in full: archlab ledger {entries[0].claim.number}")
    for note in filter(None, map(words.has_changed, entries)):
        out.print(f"note: {note}")
    out.print(f"\n{len(mistakes())} common errors, each with the correct fact: archlab ledger mistakes")


_NUMBER = 3
"""Width of a claim's number and the space after it, in columns."""


def listed(entries: Sequence[LedgerEntry], width: int) -> Iterator[Text]:
    """Yield the ledger in lines of at most `width` columns."""
    name_width = max(len(entry.claim.name) for entry in entries) + 2
    verdict_width = max(len(result.verdict) for entry in entries for result in entry.found) + 2
    for entry in entries:
        texts = [("claim", entry.claim.statement), ("said ", entry.claim.in_short)]
        for result in entry.found:
            as_it_stands = result.scale == AS_IT_STANDS
            number, name = (f"{entry.claim.number:>2}", entry.claim.name) if as_it_stands else ("", result.scale)
            head = f"{number:<{_NUMBER}}{name:<{name_width}}{result.verdict:<{verdict_width}}"
            yield from _folded(head, words.place(entry, result), width, "bold", len(head) - verdict_width)
            here = "; ".join(filter(None, (words.found_here(result), words.beside(result))))
            for label, text in [*texts, *([("found", here)] if here else [])]:
                yield from _folded(f"{'':<{_NUMBER}}{label}  ", text, width, "dim", _NUMBER + len(label))
            texts = []
        yield from _folded(f"{'':<{_NUMBER}}but   ", f"{entry.claim.caveat_in_short}", width, "dim", _NUMBER + 3)
        yield Text()


def _folded(head: str, text: str, width: int, style: str, end: int) -> Iterator[Text]:
    folded = TextWrapper(width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
    first, *others = folded.wrap(text) or [head.rstrip()]
    line = Text(first)
    line.stylize(style, _NUMBER, end)
    yield line
    yield from map(Text, others)
