"""Claims, their sources, and common errors, all read from the YAML files in this folder."""

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from archlab.config.about import Certainty
from archlab.config.core.base import Base, Count, Positive
from archlab.config.core.text import Line
from archlab.config.core.yaml_text import read_yaml
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.evidence.topics import Demonstrated
from archlab.study.outcomes.schema import Unit
from archlab.study.record import Trend

Predicted = Literal["better", "worse", "higher", "lower", "equivalent", "not worse", "not better"]
"""Predicted result of comparing an arm with its reference.

"higher" and "lower" are used for outcomes of which a higher value is neither better nor worse. "equivalent" comes true
only if the runs rule out a difference larger than the margin; it is not enough that no difference is found. "not worse"
also comes true if the arm is better, and "not better" if it is worse.
"""


class Publication(Base):
    """A paper, a report or a repository that archlab cites."""

    authors: Line
    """Family names of one or two authors, or the family name of the first author and "and others"."""
    year: Annotated[int, Field(ge=1900)]
    title: Line | None = None
    """Title of the publication. null if it is not certain."""
    where: Line | None = None
    """arXiv number, venue or website of the publication. null if it is not certain."""
    certainty: Certainty
    """Basis of archlab's statements about the publication.

    `verified`: the publication itself was read. `secondary`: a transcription of it was read. `from memory`: it was not
    read again for this list.
    """

    @property
    def cited(self) -> str:
        """Short citation, such as `Zhang and Sennrich 2019` or `Kaplan 2020`."""
        return f"{self.authors.removesuffix(' and others')} {self.year}"

    @property
    def address(self) -> str | None:
        """URL of the publication. None if the URL is not certain."""
        where = self.where or ""
        if number := re.match(r"arXiv (\d{4}\.\d{5})", where):
            return f"https://arxiv.org/abs/{number[1]}"
        return f"https://{where}" if re.match(r"[\w.]+\.\w+/", where) else None

    @property
    def located(self) -> str:
        """Citation followed by `where`, or by the title if `where` is null.

        For example, `Shazeer 2020, arXiv 2002.05202`.
        """
        return ", ".join(part for part in (self.cited, self.where or self.title) if part)


class Pair(Base):
    """Two published numbers that can be subtracted: with a choice, and without it. Each comes from a single run."""

    topics: Annotated[tuple[Line, ...], Field(min_length=1, strict=False)]
    """Names of the topics that the comparison is about."""
    of: Line
    """The two models that are compared, such as `RMSNorm vs LayerNorm`."""
    what: Line
    """Name of the quantity."""
    better: Literal["lower", "higher"]
    """Direction in which the quantity is better."""
    value: float
    """Number with the choice."""
    reference: float
    """Number of the model that it is compared with."""
    parameters: Count | None = None
    """Number of parameters of the two models. null if it is not known."""


class Effect(Base):
    """A result that a publication reports."""

    source: Line
    """Key of the source in sources.yaml."""
    of: Line
    """The quantity that was measured, and the models that were compared."""
    found: Line
    """Published numbers, in words."""
    pairs: Annotated[tuple[Pair, ...], Field(strict=False)] = ()
    """Numbers in `found` that a chart can compare. Empty if there are none."""
    scale: Line | None = None
    """Size of the models or of their data. null if it is not stated or does not apply."""
    read: Literal["in the paper's text", "in a secondary source", "read from a plot"]
    """Origin of the numbers. Numbers that were read from a plot, for example, are less certain than numbers in the
    text."""


class Margin(Base):
    """Largest difference that is too small to matter, for all outcomes with one unit, in every claim."""

    largest: Positive
    is_relative: bool = False
    """Whether `largest` is a share of the mean of the study's first arm. Otherwise, it has the unit of the outcome."""
    because: Line
    """Reason for the number, from published effects."""


class Prediction(Base):
    """A claim's prediction for one comparison in a study."""

    study: Line
    """Name of a study that comes with archlab."""
    arm: Line
    """Name of an arm that is compared with its reference. If the study crosses factors, it can also be the name of a
    contrast."""
    outcome: Line | None = None
    """Name of the outcome that is compared. null means the primary outcome of the study."""
    verdict: Predicted
    """Predicted result of the comparison."""
    listed_later: bool = False
    """Whether the comparison was listed after its result was known, because it is an instance of the statement."""


class PrimaryPrediction(Prediction):
    """The prediction that decides a claim."""

    because: Line
    """Reason why this comparison decides. It is written before the study is run."""


class Ranking(Base):
    """Order of a study's arms according to a publication. archlab compares it with the order in its own runs."""

    study: Line
    """Name of a study that comes with archlab."""
    source: Line
    """Key of the source in sources.yaml."""
    what: Line
    """Name of the published quantity."""
    values: Annotated[dict[Line, float], Field(min_length=4)]
    """Published value for each arm. Lower is better."""


class OverSizes(Base):
    """A comparison that a study makes at several model sizes, with the prediction for its trend."""

    study: Line
    """Name of a study that comes with archlab and has `sizes`."""
    arm: Line
    """Name of an arm, without a size."""
    of: Line
    """The two models that are compared, the choice first, such as `SwiGLU vs ReLU`."""
    leaves_out: bool = False
    """Whether the arm is the model without the choice, and its reference the model with it."""
    topic: Line
    """Name of a topic. Published pairs about it are shown beside the results if their `parameters` are known."""
    trend: Trend
    """Predicted trend of the difference, from the smallest model to the largest."""
    because: Line
    """Reason for the prediction. It is written before the study is run."""


class Claim(Base):
    """A common statement about architectures, such as that gated MLPs are better than plain ones."""

    number: Annotated[int, Field(ge=1)]
    """Number of the claim, as in `archlab ledger 4`."""
    name: Line
    """Name of the claim in a few words."""
    statement: Line
    """The claim in one or two sentences."""
    sources: Annotated[tuple[Line, ...], Field(min_length=1, strict=False)]
    """Keys in sources.yaml of the publications that make the claim."""
    in_short: Line
    """Published result in a few words, for a table. The verdict on the claim is about this result."""
    published: Annotated[tuple[Effect, ...], Field(strict=False)] = ()
    """Results that publications report about the claim."""
    primary: PrimaryPrediction | None = None
    """Prediction that decides the claim. null if no study tests the claim yet."""
    instances: Annotated[tuple[Prediction, ...], Field(strict=False)] = ()
    """Other comparisons of which the statement says the result. If one shows the opposite, the claim is "mixed" at
    best."""
    described: Annotated[tuple[Prediction, ...], Field(strict=False)] = ()
    """Predictions that do not affect the verdict, such as consequences of the config and controls."""
    rankings: Annotated[tuple[Ranking, ...], Field(strict=False)] = ()
    """Published orders of arms, which archlab compares with the order in its own runs. They do not affect the
    verdict."""
    over_sizes: Annotated[tuple[OverSizes, ...], Field(strict=False)] = ()
    """Comparisons at several model sizes. They do not affect the verdict."""
    caveat_in_short: Line
    """Main point of `caveat` in a few words. It is shown next to every verdict on the claim."""
    caveat: Line
    """Reasons why results at a small scale may be misleading."""

    @property
    def expected(self) -> tuple[Prediction, ...]:
        """All predictions, the primary one first."""
        return (*([self.primary] if self.primary else []), *self.instances, *self.described)

    @property
    def studies(self) -> list[str]:
        """Names of the studies that test the claim."""
        return list(dict.fromkeys(tests.study for tests in (*self.expected, *self.over_sizes)))

    @property
    def also_cited(self) -> list[str]:
        """Keys of publications that report numbers about the claim but do not make the claim themselves."""
        keys = dict.fromkeys(published.source for published in (*self.published, *self.rankings))
        return [key for key in keys if key not in self.sources]


class Mistake(Demonstrated):
    """A common error about language models, and its correction."""

    said: Line
    """The wrong statement."""
    fact: Line
    """The correct statement."""
    topics: Annotated[tuple[Line, ...], Field(min_length=1, strict=False)]
    """Names of the topics that the error is about."""
    sources: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Keys in sources.yaml. Empty if the fact follows from counting parameters, FLOPs or bytes (docs/cost.md), or from
    computing an example."""
    shows: Annotated[dict[Line, Line], Field(min_length=1)]
    """Sentences about the output of the command, as in `Demonstrated.shows`. The command can also be `python -c` with
    one line of code. Expressions about its output use the name `printed` for the printed text."""


_Read = TypeVar("_Read")


@cache
def sources() -> dict[str, Publication]:
    """Return all publications, keyed as in sources.yaml."""
    return _checked(dict[str, Publication], _raw("sources"))


@cache
def claims() -> dict[int, Claim]:
    """Return all claims, keyed by number in ascending order."""
    in_order = sorted(_checked(list[Claim], _raw("claims")["claims"]), key=lambda claim: claim.number)
    return {claim.number: claim for claim in in_order}


@cache
def margins() -> dict[Unit, Margin]:
    """Return the margin of each unit for which a margin is defined."""
    return _checked(dict[Unit, Margin], _raw("claims")["margins"])


@cache
def mistakes() -> list[Mistake]:
    """Return the common errors. Errors about architecture come first, then errors about parameters, FLOPs and bytes."""
    return _checked(list[Mistake], _raw("mistakes")["mistakes"])


def mistakes_about(topic: str) -> list[Mistake]:
    """Return the common errors about the topic with this name."""
    return [mistake for mistake in mistakes() if topic in mistake.topics]


def cited(keys: Iterable[str]) -> list[Publication]:
    return [sources()[key] for key in keys]


def claim_of(study: str) -> list[Claim]:
    """Return the claims that the named study tests."""
    return [claim for claim in claims().values() if study in claim.studies]


def find_claim(name: int | str) -> Claim:
    """Return the claim with this number or name. Raise UserError if no claim matches."""
    text = str(name)
    by_name = {claim.name: claim for claim in claims().values()}
    by_name_or_number = by_name | {str(number): claim for number, claim in claims().items()}
    if text not in by_name_or_number:
        hint = nearest(text, by_name) or f"; expected a number from 1 to {max(claims())}, or the name of a claim;"
        raise UserError(f"unknown claim {text!r}{hint} `archlab ledger` shows all claims")
    return by_name_or_number[text]


def _raw(name: str) -> dict[str, Any]:
    return read_yaml(resources.files("archlab.evidence") / f"{name}.yaml")


def _checked(kind: type[_Read], raw: Any) -> _Read:
    return TypeAdapter(kind).validate_python(raw)
