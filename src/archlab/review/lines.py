"""Findings as lines for the terminal."""

import textwrap
from collections.abc import Iterator, Sequence

from archlab.review.findings import Finding

_INDENT = " " * 9
_MOST_NAMES = 6


def lines(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """Of each finding what it is, why it matters, and what is known of others."""
    for found in findings:
        yield f"{found.level:<9}{found.what}"
        for text in _below(found):
            yield from textwrap.wrap(
                text, max(width, 40), initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
            )
        yield ""


def summary(findings: Sequence[Finding]) -> str:
    """`2 warnings, 1 note`."""
    counts = ((sum(found.level == level for found in findings), level) for level in ("warning", "note"))
    return ", ".join(f"{n or 'no'} {level}{'' if n in (0, 1) else 's'}" for n, level in counts)


def in_one_line(warnings: Sequence[str]) -> str:
    """For where a config is used."""
    n = len(warnings)
    return f"{n} warning{'' if n == 1 else 's'} of shape: {'; '.join(warnings)} (`archlab check` says why)"


def _below(found: Finding) -> Iterator[str]:
    yield found.why
    if found.measured:
        yield f"Measured {found.measured}."
    if found.published:
        yield f"Published: {found.published}."
    if found.others:
        named, more = ", ".join(found.others[:_MOST_NAMES]), len(found.others) - _MOST_NAMES
        yield f"Published all the same: {named}{f' and {more} more' if more > 0 else ''}."
    yield f"Source: {found.source}."
