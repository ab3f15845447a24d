"""One topic or field: its explanation, as on a page of the lecture, and a search over everything by name."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from archlab.config.io import facts, presets, studies
from archlab.evidence.field_help import FieldHelp, field_help
from archlab.evidence.look_up import UsersKinds, look_up, plain
from archlab.evidence.topics import Chapter, Topic, topics
from archlab.evidence.words import spellings
from archlab.report.drawings.pictures import pictures
from archlab.report.guide.lecture import TopicEntry, topic_entry
from archlab.ui.configs import UnknownNameError

_MOST_RESULTS = 20


class Explained(NamedTuple):
    """Explanation of a topic, or of the fields or the chapter that a word names."""

    title: str
    entry: TopicEntry | None
    pictures: list[Markup]
    fields: list[FieldHelp]
    topics: dict[str, Topic]
    command: str


def explain(text: str) -> Explained:
    """Return the explanation of a topic, a chapter or a field. Raise UserError if the word is unknown."""
    command = f"archlab explain {text}"
    match look_up(text):
        case Chapter() as chapter:
            return Explained(chapter.title, None, [], [], chapter.topics, command)
        case (str() as name, Topic() as topic):
            drawn = (pictures()[picture]() for picture in topic.pictures if picture in pictures())
            svgs = [Markup(svg) for svg in drawn if isinstance(svg, str)]
            return Explained(topic.title, topic_entry(name, topic), svgs, [], {}, command)
        case UsersKinds():
            raise UnknownNameError(f"{text}: a kind of a plug-in; `{command}` explains it in a terminal")
        case fields:
            return Explained(text, None, [], fields, {}, command)


class Result(NamedTuple):
    """Place that the search finds."""

    title: str
    kind: str
    address: str


def search(text: str) -> list[Result]:
    """Return the places whose name or another word for them contains the text, the best ones first."""
    wanted = plain(text)
    if not wanted:
        return []
    ranked = [
        (min(_rank(word, wanted) for word in words), result)
        for result, words in _places()
        if any(wanted in word for word in words)
    ]
    return [result for _, result in sorted(ranked, key=lambda pair: pair[0])[:_MOST_RESULTS]]


def _rank(word: str, wanted: str) -> tuple[int, int]:
    kind = 0 if word == wanted else 1 if word.startswith(wanted) else 2 if wanted in word else 3
    return kind, len(word)


@cache
def _places() -> list[tuple[Result, list[str]]]:
    return [(result, [plain(word) for word in words]) for result, words in _named_places()]


def _named_places() -> Iterator[tuple[Result, list[str]]]:
    for name, topic in topics():
        words = [name, topic.title, *topic.aliases, *spellings().get(name, ())]
        yield Result(topic.title, "choice", f"/choice/{quote(name)}"), words
    for name in (*presets(), *facts()):
        yield Result(name, "model", f"/models/{quote(name)}"), [name]
    for name in studies():
        yield Result(name, "study", f"/studies/new?from={quote(name)}"), [name]
    for path in field_help():
        yield Result(path, "field", f"/choice/{quote(path)}"), [path, path.rpartition(".")[2]]
