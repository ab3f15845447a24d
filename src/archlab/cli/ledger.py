"""The command `archlab ledger`."""

from pathlib import Path

from archlab.cli.arguments import ClaimName, Flag, check_one_answer
from archlab.cli.terminal import long_output, print_json
from archlab.console import console
from archlab.errors import UserError
from archlab.evidence.claims import cited, mistakes, sources
from archlab.evidence.ledger import ledger
from archlab.report.ledger.text import print_entry, print_ledger
from archlab.report.text_table import labeled

_MISTAKES = "mistakes"
"""Argument that lists common errors in place of claims."""

_LABEL = 6
"""Width of the labels of a common error, in columns."""


@long_output
def run(claim: ClaimName | None = None, /, *, html: Path | None = None, json: Flag = False) -> None:
    """Show claims about architecture, with the published results and the results of archlab's own small runs.

    Parameters
    ----------
    claim
        Number or name of one claim, to show it in full; or "mistakes", to list common errors. Without a claim, all
        claims are listed.
    html
        Write all claims as a page to this file. The page shows every prediction next to its result.
    json
        Print JSON.
    """
    check_one_answer(json, html)
    if html is not None:
        from archlab.report.ledger.page import write_ledger

        if claim is not None:
            raise UserError(f"--html writes a page of all claims; leave out {claim!r}")
        print(write_ledger(ledger(), html))
        return
    if claim == _MISTAKES:
        if json:
            print_json(_mistakes_as_json())
        else:
            _print_mistakes()
        return
    entries = ledger() if claim is None else ledger(claim)
    if json:
        listed_mistakes = _mistakes_as_json() if claim is None else {}
        values = {"claims": [entry.model_dump(mode="json") for entry in entries], **listed_mistakes}
        print_json(values | {"sources": {key: source.model_dump(mode="json") for key, source in sources().items()}})
    elif claim is None:
        print_ledger(console(), entries)
    else:
        print_entry(console(), entries[0])


def _mistakes_as_json() -> dict[str, object]:
    return {"mistakes": [mistake.model_dump(mode="json", by_alias=True) for mistake in mistakes()]}


def _print_mistakes() -> None:
    out = console()
    for mistake in mistakes():
        cited_by = ", ".join(dict.fromkeys(source.cited for source in cited(mistake.sources)))
        texts = {"said": mistake.said, "but": f"{mistake.fact}{f' ({cited_by})' if cited_by else ''}"}
        lines = [line for label, text in texts.items() for line in labeled(label, text, _LABEL, out.width)]
        for n, command in enumerate(mistake.commands):  # never wrapped, so that they can be copied
            lines.append(f"{'' if n else 'see':<{_LABEL}}{command}")
        for sentence in mistake.shows:
            lines += labeled("", sentence, _LABEL, out.width)
        for line in (*lines, ""):
            out.print(line, soft_wrap=True)
