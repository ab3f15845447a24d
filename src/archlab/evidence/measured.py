"""What was published and what our committed runs found of a topic itself, among all that its claims are about."""

from collections.abc import Iterator, Sequence
from functools import cache

from archlab.config.identity import flatten, resolved
from archlab.evidence.changes import explaining
from archlab.evidence.ledger import Entry
from archlab.evidence.look_up import plain
from archlab.evidence.schema import Effect
from archlab.evidence.topics import Topic
from archlab.evidence.verdicts import Judged
from archlab.study.design import arms
from archlab.study.scales import AS_IT_STANDS, library_study

_LETTERS = 3
"""Of a name that is looked for in a sentence, at least."""


def measured(name: str, entries: Sequence[Entry]) -> Iterator[Judged]:
    """Comparisons of arms that change to the topic of that name, as the studies stand; none that follows from the
    config, as a cache's size does."""
    for judged in (one for entry in entries for one in entry.found[0].judged):
        changes = _topics_of_arms(judged.expected.study).get(judged.expected.arm, set())
        if judged.comparison and not judged.is_counted and name in changes:
            yield judged


def published(topic: Topic, entries: Sequence[Entry]) -> Iterator[Effect]:
    """Effects that name the topic."""
    spellings = [plain(text) for text in (topic.title, *topic.aliases)]
    for effect in (one for entry in entries for one in entry.claim.published):
        said = plain(f"{effect.of} {effect.found}")
        if any(spelling in said for spelling in spellings if len(spelling) >= _LETTERS):
            yield effect


@cache
def _topics_of_arms(study: str) -> dict[str, set[str]]:
    """Arm -> the topics that explain what it changes."""
    found = arms(library_study(study, AS_IT_STANDS))
    return {arm.name: set(explaining(flatten(arm.overrides), flatten(resolved(arm.config)))) for arm in found}
