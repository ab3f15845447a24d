"""The lecture: a page per chapter of topics."""

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
from markupsafe import Markup

from archlab.config.core.base import Base
from archlab.evidence.claims import cited, claims
from archlab.evidence.ledger import ledger, measured, published
from archlab.evidence.price import BASE, CONTEXT, equal_size, price_rows, prices
from archlab.evidence.topics import Chapter, Topic, chapters
from archlab.evidence.usage import Usage, in_words, usage
from archlab.report.guide.reference import address_of_code
from archlab.report.ledger.words import in_a_line, measured_line, published_line

Draws = Mapping[str, Callable[[], str | alt.TopLevelMixin]]
"""Name of a picture -> what draws it: SVG, or a chart, which takes its colors from the page."""


class TopicEntry(Base):
    """A topic as its page shows it."""

    name: str
    topic: Topic
    used: Usage | None
    """null: not known of published models."""
    used_in_words: str
    settings: list[tuple[str, str | None]]
    """What makes it in a config, each with where the field is explained; null: in a layer kind of one's own."""
    compared: list[str]
    """Of which models costs are counted: with it, without, and mostly no more."""
    rows: list[tuple[str, ...]]
    """What each costs; empty where it costs nothing, or is no choice of a model."""
    equal_size: str
    """What the model of equal size has; empty where there is none."""
    papers: list[str]
    """Published effects that name it."""
    here: list[str]
    """What our runs found of it."""
    claims: list[tuple[int, str]]
    """Number, and in a line what is claimed of it and what was found here."""
    sources: str
    """Who says so, and where."""


def chapter_addresses() -> dict[str, str]:
    """Name of a chapter -> its page."""
    return {name: f"{number:02}-{name}.html" for number, name in enumerate(chapters(), start=1)}


def topic_addresses() -> dict[str, str]:
    """Name of a topic -> its place on the page of its chapter."""
    pages = chapter_addresses()
    return {topic: f"{pages[name]}#{topic}" for name, chapter in chapters().items() for topic in chapter.topics}


def chapter_values(chapter: Chapter, pictures: Draws) -> dict[str, Any]:
    """What a chapter's page shows. Topics name their pictures; one that there is not is left out."""
    drawn = {name: pictures[name]() for name in _named(chapter) if name in pictures}
    charts = {name: chart for name, chart in drawn.items() if not isinstance(chart, str)}
    return {
        "chapter": chapter,
        "entries": [_entry(name, topic) for name, topic in chapter.topics.items()],
        "svgs": {name: Markup(svg) for name, svg in drawn.items() if isinstance(svg, str)},
        "charts": charts,
        "base": BASE,
        "context": CONTEXT,
    }


def _named(chapter: Chapter) -> list[str]:
    return [name for topic in chapter.topics.values() for name in topic.pictures]


def _entry(name: str, topic: Topic) -> TopicEntry:
    used = usage(topic.conditions) if topic.conditions else None
    found = prices(topic)
    entries = ledger(chosen=map(claims().__getitem__, topic.claims))
    return TopicEntry(
        name=name,
        topic=topic,
        used=used,
        used_in_words=in_words(used) if used else "",
        settings=[(setting, address_of_code(setting)) for setting in topic.settings],
        compared=list(found),
        rows=price_rows(found),
        equal_size=equal_size(topic),
        papers=[published_line(effect) for effect in published(topic, entries)],
        here=[measured_line(judged) for judged in measured(name, entries)],
        claims=[(entry.claim.number, in_a_line(entry)) for entry in entries],
        sources="; ".join(source.located for source in cited(topic.sources)),
    )
