"""How many findings there are, in a line."""

from collections.abc import Sequence

from archlab.review.findings import Finding


def summary(findings: Sequence[Finding]) -> str:
    """`2 warnings, 1 note`."""
    counts = ((sum(found.level == level for found in findings), level) for level in ("warning", "note"))
    return ", ".join(f"{n or 'no'} {level}{'' if n in (0, 1) else 's'}" for n, level in counts)


def in_one_line(warnings: Sequence[str]) -> str:
    """For where a config is used."""
    n = len(warnings)
    return f"{n} warning{'' if n == 1 else 's'} of shape: {'; '.join(warnings)} (`archlab check` says why)"
