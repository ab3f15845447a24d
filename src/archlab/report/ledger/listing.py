"""How the terminal lists all claims: the verdicts below each other, what was said and what was found under each."""

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from rich.text import Text

from archlab.evidence.ledger import LedgerEntry
from archlab.report.ledger import words
from archlab.study.study_file import AS_IT_STANDS

_NUMBER = 3
"""Columns of the number and of the space behind it."""


def listed(entries: Sequence[LedgerEntry], width: int) -> Iterator[Text]:
    """In lines of at most `width` columns."""
    names = max(len(entry.claim.name) for entry in entries) + 2
    verdicts = max(len(words.verdict(one)) for entry in entries for one in entry.found) + 2
    for entry in entries:
        said = [("said", entry.claim.in_short)]
        for one in entry.found:
            as_it_stands = one.scale == AS_IT_STANDS
            number, name = (f"{entry.claim.number:>2}", entry.claim.name) if as_it_stands else ("", one.scale)
            head = f"{number:<{_NUMBER}}{name:<{names}}{words.verdict(one):<{verdicts}}"
            yield from _folded(head, words.counts(one), width, "bold", len(head) - verdicts)
            here = "; ".join(filter(None, (words.decisive(one), words.beside(one))))
            for label, text in [*said, *([("here", here)] if here else [])]:
                yield from _folded(f"{'':<{_NUMBER}}{label}  ", text, width, "dim", _NUMBER + len(label))
            said = []
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
