"""The ledger as text."""

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

from archlab.evidence.claims import cited, mistakes
from archlab.evidence.ledger import LedgerEntry
from archlab.report.ledger import words, words_over_sizes
from archlab.report.text_table import print_columns
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


def print_entry(out: Console, entry: LedgerEntry) -> None:
    """Print everything about one claim."""
    claim = entry.claim
    out.print(f"{claim.number}. {claim.name}\n{claim.statement}\n\nCommonly said: {claim.in_short}. Sources:")
    for source in cited(claim.sources):
        out.print(f"  {words.citation(source)}")
    if claim.also_cited:
        out.print("\nAlso cited")
    for source in cited(claim.also_cited):
        out.print(f"  {words.citation(source)}")
    if claim.published:
        out.print("\nPublished")
        print_columns(out, words.PUBLISHED, map(words.published, claim.published))
    for result in entry.found:
        out.print(f"\nResults of our runs, {words.at_scale(result)}: {words.verdict_here(entry, result)}")
        if summary := words.found_here(result):
            out.print(f"{summary}.")
        if result.judged:
            print_columns(out, words.EXPECTED, map(words.expected, result.judged))
        for reason in words.untested(result):
            out.print(reason)
        if result.unpredicted:
            out.print(f"\n{words.UNPREDICTED_HEADING}")
            print_columns(out, words.UNPREDICTED, map(words.not_predicted, result.unpredicted))
        for sized in result.over_sizes:
            out.print(f"\n{words_over_sizes.heading(sized)}")
            print_columns(out, words_over_sizes.COLUMNS, map(words_over_sizes.row, (*sized.measured, *sized.published)))
        for ranking in result.rankings:
            out.print(words.ranked(ranking))
    if note := words.has_changed(entry):
        out.print(f"note: {note}")
    if entry.runs:
        out.print(words.INTERVALS)
    for ran in entry.runs:
        out.print(f"run: {words.where(ran)}")
    out.print(f"\nWhy a small scale may mislead: {entry.claim.caveat}")
    for command in words.commands(entry) if not entry.runs else ():
        out.print(f"to run it: {command}")


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
