"""The ledger as text."""

from collections.abc import Sequence

from rich.console import Console

from archlab.evidence.claims import mistakes
from archlab.evidence.ledger import LedgerEntry
from archlab.report.ledger import words


def print_ledger(out: Console, entries: Sequence[LedgerEntry]) -> None:
    """Print a few lines on each claim."""
    if not entries:
        return
    for line in words.listed(entries, out.width):
        out.print(line, soft_wrap=True)
    out.print(f"{words.scale(entries)} {words.INTERVALS} One claim in full: archlab ledger {entries[0].claim.number}")
    for note in filter(None, map(words.has_changed, entries)):
        out.print(f"note: {note}")
    out.print(f"\n{len(mistakes())} common errors, each with the correct fact: archlab ledger mistakes")
