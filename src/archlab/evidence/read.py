"""The evidence that comes with archlab: sources, claims and mistakes, read from the files beside this one."""

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from pydantic import TypeAdapter

from archlab.config.core.yaml_text import read_yaml
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.evidence.schema import Claim, Mistake, Source
from archlab.evidence.topics import topics

_Read = TypeVar("_Read")


@cache
def sources() -> dict[str, Source]:
    """Key -> who published what, and where."""
    return _checked(dict[str, Source], _raw("sources"))


@cache
def claims() -> dict[int, Claim]:
    """Number -> claim, in the order of their numbers."""
    found = sorted(_checked(list[Claim], _raw("claims")["claims"]), key=lambda claim: claim.number)
    return {claim.number: claim for claim in found}


@cache
def mistakes() -> list[Mistake]:
    """Errors in circulation, those of architecture before those of counting."""
    return _checked(list[Mistake], _raw("mistakes")["mistakes"])


def cited(keys: Iterable[str]) -> list[Source]:
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
