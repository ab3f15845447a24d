"""One topic or field: its explanation, as on a page of the lecture, and a search over everything by name."""

import shlex
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from archlab.config.io import facts, presets, studies
from archlab.errors import UserError
from archlab.evidence.claims import claims
from archlab.evidence.field_help import FieldHelp, field_help
from archlab.evidence.ledger import LedgerEntry, ledger
from archlab.evidence.look_up import UsersKinds, look_up, plain
from archlab.evidence.topics import Chapter, Topic, topics
from archlab.evidence.words import spellings
from archlab.files import STUDY
from archlab.report.guide.lecture import TopicEntry, topic_entry
from archlab.report.ledger.forest import Forest, forests
from archlab.training.run_files import METRICS
from archlab.ui.configs import UnknownNameError, folders_with
from archlab.ui.open_model import ChoiceCost, OpenModel, choice_cost
from archlab.ui.play import Play, play

_MOST_RESULTS = 20
"""Maximum number of places that the search lists."""

_MOST_KEPT = 256
"""Number of explanations that are kept for the next request. Their statistics take most of its time."""


class Explained(NamedTuple):
    """Explanation of a topic, or of the fields or the chapter that a word names."""

    title: str
    topic: tuple[str, Topic] | None
    """Name of the topic, and the topic. None for fields and chapters."""
    entry: TopicEntry | None
    forests: list[Forest]
    """Plots of the results about the topic: those of archlab and those of publications."""
    claims: list[LedgerEntry]
    fields: list[FieldHelp]
    topics: dict[str, Topic]
    command: str


@lru_cache(_MOST_KEPT)
def explain(text: str) -> Explained:
    """Return the explanation of a topic, a chapter or a field. Raise UnknownNameError if the word is unknown."""
    command = shlex.join(["archlab", "explain", text])
    try:
        found = look_up(text)
    except UserError as error:
        raise UnknownNameError(str(error)) from None
    match found:
        case Chapter() as chapter:
            return Explained(chapter.title, None, None, [], [], [], chapter.topics, command)
        case (str() as name, Topic() as topic):
            entry = topic_entry(name, topic)._replace(here=[], claims=[])  # they have parts of the screen of their own
            judged = ledger(chosen=map(claims().__getitem__, topic.claims))
            return Explained(topic.title, (name, topic), entry, forests(name, judged), judged, [], {}, command)
        case UsersKinds():
            raise UnknownNameError(f"{text}: a kind of a plug-in; `{command}` explains it in a terminal")
        case fields:
            return Explained(text, None, None, [], [], fields, {}, command)


class Screen(NamedTuple):
    """Everything that the screen of a choice shows."""

    explained: Explained
    play: Play | None
    opened: OpenModel | None
    cost: ChoiceCost | None
    address: str
    """Link to the screen as it is."""


def screen(name: str, query: list[tuple[str, str]], root: Path) -> Screen:
    """Return the screen for the name in a path and for a query. Raise UserError if they are not valid."""
    explained, opened = explain(name), OpenModel.of(query, root)
    path, of_model = f"/choice/{quote(name)}", opened.query if opened else {}
    if explained.topic is None:
        return Screen(explained, None, opened, None, path)
    _, topic = explained.topic
    cost = choice_cost(topic, opened, root) if opened else None
    texts = {key: value for key, value in query if key != "in" and key not in of_model}
    values = opened.values if opened else {}
    of_both = {**topic.fields, **values} if cost and cost.is_made else {**values, **topic.fields}
    played = play(topic, texts, of_both)
    return Screen(explained, played, opened, cost, played.address(path, of_model))


class Result(NamedTuple):
    """Place that the search finds."""

    title: str
    kind: str
    address: str


def search(text: str, root: Path) -> list[Result]:
    """Return the places whose name or another word for them contains the text, the best ones first. Studies and runs
    below the folder `root` are places, too."""
    wanted = plain(text)
    if not wanted:
        return []
    ranked = [
        (min(_rank(word, wanted) for word in words), result)
        for result, words in (*_places(), *_places_below(root))
        if any(wanted in word for word in words)
    ]
    return [result for _, result in sorted(ranked, key=lambda pair: pair[0])[:_MOST_RESULTS]]


def _rank(word: str, wanted: str) -> tuple[int, int]:
    kind = 0 if word == wanted else 1 if word.startswith(wanted) else 2 if wanted in word else 3
    return kind, len(word)


@cache
def _places() -> list[tuple[Result, list[str]]]:
    return [(result, [plain(word) for word in words]) for result, words in _named_places()]


def _places_below(root: Path) -> Iterator[tuple[Result, list[str]]]:
    for file, kind, screen_of in ((STUDY, "your study", "/studies/of"), (METRICS, "your run", "/runs/of")):
        for folder in folders_with(file, root):
            yield Result(str(folder), kind, f"{screen_of}/{quote(str(folder))}"), [plain(str(folder))]


def _named_places() -> Iterator[tuple[Result, list[str]]]:
    for name, topic in topics():
        words = [name, topic.title, *topic.aliases, *spellings().get(name, ())]
        yield Result(topic.title, "choice", f"/choice/{quote(name)}"), words
    about = {number: name for name, topic in reversed([*topics()]) for number in topic.claims}
    for number, name in sorted(about.items()):
        claim = claims()[number]
        words = [claim.name, f"claim {number}", claim.statement]
        yield Result(f"{number}. {claim.name}", "claim", f"/choice/{quote(name)}#claim-{number}"), words
    for name in (*presets(), *facts()):
        yield Result(name, "model", f"/models/{quote(name)}"), [name]
    for name in studies():
        yield Result(name, "study", f"/studies/new?from={quote(name)}"), [name]
    for path in field_help():
        yield Result(path, "field", f"/choice/{quote(path)}"), [path, path.rpartition(".")[2]]
