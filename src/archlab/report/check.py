"""Findings of `archlab check` in words, with their sources. The terminal, the JSON output and the page share this
wording."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from archlab.config.layers import layer_configs
from archlab.displayed import Displayed
from archlab.errors import check_at_least
from archlab.evidence.claims import Claim, cited, claims, sources
from archlab.exchange.configs import ConfigSource, shape_of
from archlab.files import write_page
from archlab.pricing.partition import PipelineStages
from archlab.pricing.units import count
from archlab.report.text_table import print_columns
from archlab.review.findings import Finding, Result, findings, results, summary
from archlab.review.shape_rule import Between, Case, PublishedResult, shown

_INDENT = " " * 9
_MOST_NAMES = 6


@dataclass(frozen=True, repr=False)
class Review(Displayed):
    """Config under review, and what `archlab check` says about it."""

    case: Case
    findings: tuple[Finding, ...]
    """Values that break a rule, warnings first."""
    part: str = ""
    """Description of the part of the model that the config covers. Empty for the whole model."""

    @property
    def data(self) -> list[dict[str, Any]]:
        """The findings as `archlab check --json` prints them."""
        return [as_json(finding) for finding in self.findings]


def check(
    config: ConfigSource, *, tensor: int | None = None, pipeline: int | None = None, languages: int | None = None
) -> Review:
    """Review the shape of a config against its own rules and against published models.

    - `config`: a config, or its name, as for `archlab.load_config`. The name of a published model that archlab cannot
      build works, too.
    - `tensor`: number of devices among which each matrix is divided. None means a number that depends on the size.
    - `pipeline`: number of pipeline stages. None means no pipeline.
    - `languages`: number of languages in the text. None means that it is unknown.

    A warning means that the model uses hardware poorly. A note means that a value is outside the range of published
    models. Raise UserError if the model cannot be divided in this way.

    >>> archlab.check("llama-3-8b").findings
    ()
    >>> config = archlab.load_config("llama-3-8b", "model.vocab_size=128255")
    >>> [finding.field for finding in archlab.check(config).findings]
    ['vocab_size']
    """
    check_at_least(1, tensor=tensor, pipeline=pipeline, languages=languages)
    shape = shape_of(config)
    case = Case(shape.config, tensor, languages, pipeline)
    return Review(case, tuple(findings(case)), shape.part)


def print_review(out: Console, review: Review, name: str = "") -> None:
    """Print the findings, the table of pipeline stages if there is one, and a summary after the name of the config.

    If the config covers only a part of the model, that part comes first.
    """
    if review.part:
        out.print(f"{name}: {review.part}\n" if name else f"{review.part}\n", soft_wrap=True)
    for line in lines(review.findings, out.width):
        out.print(line, soft_wrap=True)
    if review.case.pipeline_stages:
        columns, *rows = stages(review.case, review.case.pipeline_stages)
        print_columns(out, columns, rows, right=columns[1:])
    out.print(f"{name}: {summary(review.findings)}" if name else summary(review.findings), soft_wrap=True)


def lines(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """Yield lines of text for each finding: what was found, why it matters, what other models do, and the sources."""
    for finding in findings:
        yield f"{finding.level:<9}{finding.what}"
        for text in (*sentences(finding), *_references(finding)):
            yield from textwrap.wrap(
                text,
                max(width, 40),
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
                break_on_hyphens=False,
            )
        yield ""


def sentences(finding: Finding) -> Iterator[str]:
    yield finding.why
    if finding.measured:
        yield f"Measured {_measured(finding.measured)}."
    if finding.published:
        yield f"Published: {finding.published}."
    if finding.others:
        names, more = ", ".join(finding.others[:_MOST_NAMES]), len(finding.others) - _MOST_NAMES
        yield f"Published models that do this anyway: {names}{f' and {more} more' if more > 0 else ''}."


def stages(case: Case, division: PipelineStages) -> Iterator[Sequence[str]]:
    """Yield the rows of a table of pipeline stages, starting with the headings. Neighboring stages with the same values
    share a row."""
    layers, counted, last = layer_configs(case.config.model), case.counted, len(division.layers) - 1
    head = counted.embedding if case.config.model.head.tied else counted.head
    mean = sum(division.work) / len(division.work)
    rows = list[tuple[str, str, str]]()
    for i, stage in enumerate(division.layers):
        own = sum(layers[index].parameters().total() for index in stage)
        ends = [*(["embedding"] if i == 0 else []), *(["head"] if i == last else [])]
        own += counted.embedding * (i == 0) + head * (i == last)
        rows.append((" + ".join([str(len(stage)), *ends]), count(own), f"{division.work[i] / mean:.2f}"))
    yield "stage", "layers", "parameters", "work / mean"
    first = 1
    for row, alike in groupby(rows):
        n = len([*alike])
        yield f"{first}" if n == 1 else f"{first} to {first + n - 1}", *row
        first += n


def claims_about(finding: Finding) -> list[Claim]:
    """Return the claims in the ledger that the finding is about."""
    return [claims()[number] for number in finding.claims]


def command(claim: Claim) -> str:
    """Return the command that prints the full text of the claim."""
    return f"archlab ledger {claim.number}"


def as_json(finding: Finding) -> dict[str, Any]:
    """Return the finding as JSON. It includes the sources from the ledger, and the commands that print the claims
    behind the finding."""
    keys = [*finding.sources, *([finding.measured.source] if finding.measured else [])]
    return {
        **finding.model_dump(mode="json"),
        "sources": {key: sources()[key].model_dump(mode="json") for key in keys},
        "claims": {claim.number: command(claim) for claim in claims_about(finding)},
    }


def _measured(point: PublishedResult) -> str:
    where = ", ".join(filter(None, [sources()[point.source].cited, point.where]))
    return f"at {shown(point.at)}: {point.found} ({where})"


def _references(finding: Finding) -> Iterator[str]:
    if finding.sources:
        citations = (", ".join(filter(None, [source.cited, source.where])) for source in cited(finding.sources))
        yield f"Source: {'; '.join(citations)}."
    for claim in claims_about(finding):
        yield f"Claim {claim.number}, {claim.name}: {command(claim)}"


class Mark(NamedTuple):
    """Published model in a strip. All positions are percentages of the strip's width or height."""

    left: float
    bottom: float
    height: float
    name: str
    """Name and value of the model."""


class Strip(NamedTuple):
    """Values of published models on a horizontal axis, with the config's own value."""

    marks: list[Mark]
    own: float
    """Position of the config's value, as a percentage of the width."""
    usual: tuple[float, float] | None
    """Left end and width of the usual range, as percentages. None if the rule accepts other values than a range."""
    ends: tuple[str, str]
    """Smallest and largest value of the axis."""
    words: str
    """The strip in words."""


_BINS = 72
"""Number of columns of a strip. Models in the same column are stacked."""


def strip(result: Result) -> Strip | None:
    """Return the strip of published models for a value, or None without two different published values.

    The axis is logarithmic if all values are positive and the largest is more than 10 times the smallest. The height of
    a stack grows with the square root of its number of models, so that a single model beside a high stack is visible.
    """
    values = sorted(result.published.items(), key=lambda pair: pair[1])
    numbers = [value for _, value in values]
    low, high = min(*numbers, result.number, math.inf), max(*numbers, result.number, -math.inf)
    if len(set(numbers)) < 2:
        return None
    scale = math.log if low > 0 and high > 10 * low else float

    def column(value: float) -> int:
        share = (scale(value) - scale(low)) / (scale(high) - scale(low))
        return round(min(max(share, 0), 1) * (_BINS - 1))

    columns = [column(value) for value in numbers]
    most = max(map(columns.count, columns))

    def top(n: int) -> float:
        return 100 * (n / most) ** 0.5

    usual = None
    if isinstance(result.usual, Between):
        least = low if result.usual.low is None else max(low, result.usual.low)
        most_usual = high if result.usual.high is None else min(high, result.usual.high)
        first, last = column(least), column(most_usual)
        usual = (100 * first / _BINS, 100 * (last + 1 - first) / _BINS)
    return Strip(
        [
            Mark(100 * at / _BINS, top(n_below), top(n_below + 1) - top(n_below), f"{name}: {shown(value)}")
            for i, ((name, value), at) in enumerate(zip(values, columns, strict=True))
            for n_below in [columns[:i].count(at)]
        ],
        100 * (column(result.number) + 0.5) / _BINS,
        usual,
        (shown(low), shown(high)),
        f"{len(values)} published models from {shown(numbers[0])} to {shown(numbers[-1])}, median "
        f"{shown(median(numbers))}; this config has {shown(result.number)}",
    )


def write_check(title: str, review: Review, path: Path) -> Path:
    """Write the page, creating missing parent folders, and return its path."""
    return write_page(path, render(title, review))


def render(title: str, review: Review) -> str:
    """Return the page as HTML. `title` is the name of the config and its overrides. If the config covers only a part of
    the model, the part follows the title."""
    from archlab.report.html import render_page  # Altair takes a second to load

    whole_title = f"{title} ({review.part})" if review.part else title
    return render_page("check", title=whole_title, **template_values(review))


def template_values(review: Review) -> dict[str, Any]:
    """Return the values that templates about a review read."""
    checked = results(review.case)
    return {
        "findings": review.findings,
        "results": checked,
        "n_passed": sum(result.level is None for result in checked),
        "strip": strip,
        "summary": summary(review.findings),
        "sentences": sentences,
        "claims_about": claims_about,
        "command": command,
        "cited": cited,
    }
