"""What is claimed, by whom, and what is told wrongly: read from the YAML files beside this one."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from archlab.config.about import Certainty
from archlab.config.core.base import Base, Positive
from archlab.config.core.text import Line
from archlab.config.core.yaml_text import read_yaml
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.evidence.topics import topics

Predicted = Literal["better", "worse", "higher", "lower", "equivalent", "not worse", "not better"]
"""What a claim says of an arm beside its reference. higher, lower: of an outcome whose values are neither good nor
bad. equivalent, not worse and not better hold where a difference beyond the margin is ruled out: that none was found
is not enough."""


class Publication(Base):
    """A paper, a report or a repository."""

    authors: Line
    """Family names of up to two authors, or of the first, and others."""
    year: Annotated[int, Field(ge=1900)]
    """Of the first publication."""
    title: Line | None = None
    """null: not known for sure."""
    where: Line | None = None
    """Its number in arXiv, the venue, or the site. null: not known for sure."""
    certainty: Certainty
    """verified: what is said of it here was read in its own text; secondary: in transcriptions; from memory: not read
    again for this list."""

    @property
    def cited(self) -> str:
        """`Zhang and Sennrich 2019`, `Kaplan 2020`."""
        return f"{self.authors.removesuffix(' and others')} {self.year}"

    @property
    def address(self) -> str | None:
        """Where a browser finds it; None where that is not known for sure."""
        where = self.where or ""
        if number := re.match(r"arXiv (\d{4}\.\d{5})", where):
            return f"https://arxiv.org/abs/{number[1]}"
        return f"https://{where}" if re.match(r"[\w.]+\.\w+/", where) else None

    @property
    def located(self) -> str:
        """`Shazeer 2020, arXiv 2002.05202`; its title where it is not known where it is."""
        return ", ".join(part for part in (self.cited, self.where or self.title) if part)


class Effect(Base):
    """What one source found."""

    source: Line
    """Its key in sources.yaml."""
    of: Line
    """What was compared."""
    found: Line
    """The numbers, in words."""
    scale: Line | None = None
    """Size of the models, or their data. null: not said, or the number has none."""
    read: Literal["in the paper's text", "in a secondary source", "off a plot"]
    """How sure the numbers are."""


class Expectation(Base):
    """What a claim predicts for one comparison of one study."""

    study: Line
    """The name of a study that comes with archlab."""
    arm: Line
    """The arm that is compared with its reference; of crossed factors also a contrast, by its name."""
    outcome: Line | None = None
    """By name. null: the one that the study's answer is about."""
    verdict: Predicted
    """What is expected of it."""
    margin: Positive | None = None
    """The largest difference that does not matter, in the outcome's unit. null: the study's own, which is of the
    outcome that its answer is about."""
    untested: Line | None = None
    """Why the runs of its study as it stands could not test it: what they lack that it is about. It is undecided then,
    whatever their numbers say. null: they could."""


class Ranking(Base):
    """An order of arms that a source has published, to hold ours against."""

    study: Line
    """The name of a study that comes with archlab."""
    source: Line
    """The key of who published it."""
    what: Line
    """Which numbers they are."""
    values: Annotated[dict[Line, float], Field(min_length=4)]
    """Arm -> what was published of it; lower is better."""


class Claim(Base):
    """Something that people repeat when they choose an architecture."""

    number: Annotated[int, Field(ge=1)]
    """By which it is called."""
    name: Line
    """In a few words."""
    statement: Line
    """In a sentence or two."""
    sources: Annotated[tuple[Line, ...], Field(min_length=1, strict=False)]
    """Keys of who says so."""
    in_short: Line
    """What is said in a few words, for a table: of what was published that which the verdict is about."""
    published: Annotated[tuple[Effect, ...], Field(strict=False)] = ()
    """What was found elsewhere."""
    expected: Annotated[tuple[Expectation, ...], Field(strict=False)] = ()
    """What it predicts for our studies; empty where there is none about it yet."""
    rankings: Annotated[tuple[Ranking, ...], Field(strict=False)] = ()
    """Orders that ours is held against. They decide no verdict."""
    caveat_in_short: Line
    """The main point of `caveat` in a few words, for every place that shows the verdict."""
    caveat: Line
    """Why a small scale may mislead."""

    @property
    def studies(self) -> list[str]:
        """Names of the studies about it."""
        return list(dict.fromkeys(one.study for one in self.expected))

    @property
    def also_cited(self) -> list[str]:
        """Keys of who published numbers about it without saying so."""
        found = dict.fromkeys(one.source for one in (*self.published, *self.rankings))
        return [key for key in found if key not in self.sources]


class Mistake(Base):
    """An error in circulation."""

    said: Line
    """What one reads."""
    fact: Line
    """What is so."""
    sources: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Keys of where it stands; empty where it follows from counting (docs/cost.md)."""


_Read = TypeVar("_Read")


@cache
def sources() -> dict[str, Publication]:
    """Key -> who published what, and where."""
    return _checked(dict[str, Publication], _raw("sources"))


@cache
def claims() -> dict[int, Claim]:
    """Number -> claim, in the order of their numbers."""
    found = sorted(_checked(list[Claim], _raw("claims")["claims"]), key=lambda claim: claim.number)
    return {claim.number: claim for claim in found}


@cache
def mistakes() -> list[Mistake]:
    """Errors in circulation, those of architecture before those of counting."""
    return _checked(list[Mistake], _raw("mistakes")["mistakes"])


def cited(keys: Iterable[str]) -> list[Publication]:
    """The sources of these keys."""
    return [sources()[key] for key in keys]


def keys_in_use() -> Iterator[str]:
    """Every key that a claim, a mistake or a topic names."""
    for claim in claims().values():
        yield from claim.sources
        yield from (effect.source for effect in claim.published)
        yield from (ranking.source for ranking in claim.rankings)
    for mistake in mistakes():
        yield from mistake.sources
    for _, topic in topics():
        yield from topic.sources


def claim_of(study: str) -> list[Claim]:
    """The claims that a study is about."""
    return [claim for claim in claims().values() if study in claim.studies]


def find_claim(text: str) -> Claim:
    """The claim of that number or name; UserError where there is none."""
    by_name = {claim.name: claim for claim in claims().values()}
    named = by_name | {str(number): claim for number, claim in claims().items()}
    if text not in named:
        hint = nearest(text, by_name) or f"; allowed: 1 to {max(claims())}, or a claim's name"
        raise UserError(f"no claim {text!r}{hint}")
    return named[text]


def _raw(name: str) -> dict[str, Any]:
    return read_yaml(resources.files("archlab.evidence") / f"{name}.yaml")


def _checked(kind: type[_Read], raw: Any) -> _Read:
    return TypeAdapter(kind).validate_python(raw)
