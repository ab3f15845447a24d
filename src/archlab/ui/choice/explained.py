"""One topic or field: its explanation, as on a page of the lecture."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from archlab.config.core.text import command_line
from archlab.errors import UserError
from archlab.evidence.field_help import FieldHelp
from archlab.evidence.ledger import LedgerEntry, about
from archlab.evidence.look_up import UsersKinds, look_up
from archlab.evidence.topics import Chapter, Topic, topics
from archlab.report.guide.lecture import TopicEntry, topic_entry
from archlab.report.ledger.forest import Forest, forests
from archlab.ui.choice.open_model import ChoiceCost, OpenModel, choice_cost
from archlab.ui.choice.play import Play, play
from archlab.ui.configs import UnknownNameError

_MOST_KEPT = 256
"""Number of explanations that are kept for the next request. Their statistics take most of its time."""


class Evidence(NamedTuple):
    """Claims about a topic, with their results."""

    claims: list[LedgerEntry]
    forests: list[Forest]
    """Plots of the results about the topic: those of archlab and those of publications."""


class Explained(NamedTuple):
    """Explanation of a topic, or of the fields or the chapter that a word names."""

    title: str
    topic: tuple[str, Topic] | None
    """Name of the topic, and the topic. None for fields and chapters."""
    entry: TopicEntry | None
    evidence: Evidence | None
    """None for fields and chapters."""
    fields: list[FieldHelp]
    topics: dict[str, Topic]
    command: str


@lru_cache(_MOST_KEPT)
def evidence(name: str) -> Evidence:
    """Return the claims about a topic, and the plots of their results."""
    judged = about(dict(topics())[name])
    return Evidence(judged, forests(name, judged))


@lru_cache(_MOST_KEPT)
def explain(text: str) -> Explained:
    """Return the explanation of a topic, a chapter or a field. Raise UnknownNameError if the word is unknown."""
    command = command_line("explain", text)
    try:
        found = look_up(text)
    except UserError as error:
        raise UnknownNameError(str(error)) from None
    match found:
        case Chapter() as chapter:
            return Explained(chapter.title, None, None, None, [], chapter.topics, command)
        case (str() as name, Topic() as topic):
            entry = topic_entry(name, topic)._replace(here=[], claims=[])  # they have parts of the screen of their own
            return Explained(topic.title, (name, topic), entry, evidence(name), [], {}, command)
        case UsersKinds():
            raise UnknownNameError(f"{text}: a kind of a plug-in; `{command}` explains it in a terminal")
        case fields:
            return Explained(text, None, None, None, fields, {}, command)


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
