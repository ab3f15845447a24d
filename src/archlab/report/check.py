"""What `archlab check` says of a finding, and who says so: the same in the terminal, as JSON and on the page."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from archlab.config.layers import layer_configs
from archlab.evidence.claims import Claim, cited, claims, sources
from archlab.files import write_page
from archlab.pricing.partition import Cut
from archlab.pricing.units import count
from archlab.review.findings import Finding, summary
from archlab.review.shape_rule import Case, PublishedResult, shown

_INDENT = " " * 9
_MOST_NAMES = 6


def lines(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """Of each finding what it is, why it matters, what is known of others, and who says so."""
    for found in findings:
        yield f"{found.level:<9}{found.what}"
        for text in (*said(found), *_references(found)):
            yield from textwrap.wrap(
                text,
                max(width, 40),
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
                break_on_hyphens=False,
            )
        yield ""


def said(found: Finding) -> Iterator[str]:
    """Whole sentences."""
    yield found.why
    if found.measured:
        yield f"Measured {_measured(found.measured)}."
    if found.published:
        yield f"Published: {found.published}."
    if found.others:
        named, more = ", ".join(found.others[:_MOST_NAMES]), len(found.others) - _MOST_NAMES
        yield f"Published all the same: {named}{f' and {more} more' if more > 0 else ''}."


def stages(case: Case, cut: Cut) -> Iterator[Sequence[str]]:
    """Return the rows of a table of a pipeline's stages, the headings first; neighbors that are alike share a row."""
    layers, counted, last = layer_configs(case.config.model), case.counted, len(cut.layers) - 1
    head = counted.embedding if case.config.model.head.tied else counted.head
    mean = sum(cut.work) / len(cut.work)
    rows = list[tuple[str, str, str]]()
    for i, of_stage in enumerate(cut.layers):
        own = sum(layers[index].parameters().total() for index in of_stage)
        ends = [*(["embedding"] if i == 0 else []), *(["head"] if i == last else [])]
        own += counted.embedding * (i == 0) + head * (i == last)
        rows.append((" + ".join([str(len(of_stage)), *ends]), count(own), f"{cut.work[i] / mean:.2f}"))
    yield "stage", "layers", "parameters", "work / mean"
    first = 1
    for row, alike in groupby(rows):
        n = len([*alike])
        yield f"{first}" if n == 1 else f"{first} to {first + n - 1}", *row
        first += n


def claims_about(found: Finding) -> list[Claim]:
    """Those of the ledger."""
    return [claims()[number] for number in found.claims]


def command(claim: Claim) -> str:
    """What tells it in full."""
    return f"archlab ledger {claim.number}"


def as_json(found: Finding) -> dict[str, Any]:
    """With its sources as the ledger has them, and the commands that tell its claims in full."""
    keys = [*found.sources, *([found.measured.source] if found.measured else [])]
    return {
        **found.model_dump(mode="json"),
        "sources": {key: sources()[key].model_dump(mode="json") for key in keys},
        "claims": {claim.number: command(claim) for claim in claims_about(found)},
    }


def _measured(point: PublishedResult) -> str:
    where = ", ".join(filter(None, [sources()[point.source].cited, point.where]))
    return f"at {shown(point.at)}: {point.found} ({where})"


def _references(found: Finding) -> Iterator[str]:
    if found.sources:
        yield f"Source: {'; '.join(', '.join(filter(None, [one.cited, one.where])) for one in cited(found.sources))}."
    for claim in claims_about(found):
        yield f"Claim {claim.number}, {claim.name}: {command(claim)}"


def write_check(config: str, found: Sequence[Finding], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render(config, found))


def render(config: str, found: Sequence[Finding]) -> str:
    """Return the page as text. `config`: as it was called."""
    from archlab.report.html import render_page  # Altair takes a second to load

    return render_page(
        "check",
        config=config,
        found=found,
        summary=summary(found),
        said=said,
        claims_about=claims_about,
        command=command,
        cited=cited,
    )
