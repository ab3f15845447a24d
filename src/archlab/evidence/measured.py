"""What was published and what our committed runs found of a topic itself, among all that its claims are about."""

from collections.abc import Iterator, Sequence
from functools import cache

from archlab.config.identity import flatten, resolved
from archlab.evidence.changes import explaining
from archlab.evidence.compared import Compared
from archlab.evidence.ledger import Entry
from archlab.evidence.look_up import plain
from archlab.evidence.results import committed, results_name
from archlab.evidence.schema import Effect
from archlab.evidence.topics import Topic, topics
from archlab.evidence.unpredicted import unpredicted
from archlab.study.contrasts import factor_contrasts
from archlab.study.design import Arm, arms
from archlab.study.scales import AS_IT_STANDS, library_study

_LETTERS = 3
"""Of a name that is looked for in a sentence, at least."""


def measured(name: str, entries: Sequence[Entry]) -> Iterator[Compared]:
    """Comparisons of arms that change to the topic of that name, and of what it names itself, as the studies stand;
    none that follows from the config, as a cache's size does. What it names comes first, and what a study's answer is
    about before other outcomes."""
    named = dict(topics())[name].measured
    found = [one for one in _compared(entries) if _called(one) in named or name in _topics_of(one)]
    yield from sorted(found, key=lambda one: (_called(one) not in named, not _is_answer(one)))


def _compared(entries: Sequence[Entry]) -> Iterator[Compared]:
    """All that claims predict; of the rest what is about the outcome of the study's answer."""
    for entry in entries:
        yield from (one for one in entry.found[0].judged if one.comparison and not one.is_counted)
        yield from (one for one in unpredicted(entry.claim, committed(), AS_IT_STANDS) if _is_answer(one))


def _called(found: Compared) -> str:
    """As in `Topic.measured`."""
    return f"{found.study}/{found.arm}"


def _is_answer(found: Compared) -> bool:
    return found.outcome == committed()[results_name(found.study, AS_IT_STANDS)].heading(None)


def published(topic: Topic, entries: Sequence[Entry]) -> Iterator[Effect]:
    """Effects that name the topic."""
    spellings = [plain(text) for text in (topic.title, *topic.aliases)]
    for effect in (one for entry in entries for one in entry.claim.published):
        said = plain(f"{effect.of} {effect.found}")
        if any(spelling in said for spelling in spellings if len(spelling) >= _LETTERS):
            yield effect


def _topics_of(found: Compared) -> set[str]:
    return _topics_of_study(found.study).get(found.arm, set())


@cache
def _topics_of_study(study: str) -> dict[str, set[str]]:
    """Arm -> the topics that explain what it changes; where factors are crossed, contrast -> those of the level whose
    effect it is on average."""
    known = arms(library_study(study, AS_IT_STANDS))
    found = {arm.name: set(explaining(flatten(arm.overrides), flatten(resolved(arm.config)))) for arm in known}
    for name, contrast in factor_contrasts(known).items():
        if len(contrast.factors) == 1:
            ((factor, (_, level)),) = contrast.factors.items()
            found[name] = set(explaining({factor: level}, flatten(resolved(_at(known, factor, level).config))))
    return found


def _at(known: Sequence[Arm], factor: str, level: object) -> Arm:
    return next(arm for arm in known if arm.factors[factor] == level)
