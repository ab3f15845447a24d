"""The lecture: one page per chapter of topics."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import altair as alt
from markupsafe import Markup

from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import flatten, resolved
from archlab.evidence.claims import Mistake, cited, mistakes_about
from archlab.evidence.intensity import intensity_table
from archlab.evidence.ledger import about, measured, measured_over_sizes, published
from archlab.evidence.look_up import explaining
from archlab.evidence.prices import BASE, CONTEXT, configured, equal_size, prices
from archlab.evidence.topics import Chapter, Topic, chapters, topics
from archlab.evidence.usage import Usage, in_words, usage
from archlab.pricing.price import price_rows
from archlab.report.guide.reference import address_of_code
from archlab.report.ledger import words_over_sizes
from archlab.report.ledger.words import measured_lines, numbered, published_line

Draws = Mapping[str, Callable[[], str | alt.TopLevelMixin]]
"""Map the name of a picture to the function that draws it. The function returns an SVG, or a chart that takes its
colors from the page."""


class TopicEntry(NamedTuple):
    """A topic, with everything that its chapter's page shows about it."""

    name: str
    topic: Topic
    used: Usage | None
    """Published models that make the topic's choice. None if published configs do not show this."""
    used_in_words: str
    by_year: Markup
    """Bar chart of the share of models that make the choice, by year. Empty if no model does."""
    settings: list[tuple[str, str | None]]
    """Config settings that make the topic's choice, each with the address of its explanation.

    The address is None for a field of a custom kind of layer.
    """
    compared: list[str]
    """Headings of the compared models: the topic, the choice it is compared with, and the latter at equal size."""
    rows: list[tuple[str, ...]]
    """Rows of the cost table. Empty if the topic does not change any cost, or is not a choice about the model."""
    equal_size: str
    """Line about the model without the choice that has the same parameter count. Empty if there is no such model."""
    intensity: list[tuple[str, ...]]
    """Table of arithmetic intensities, with its heading. Empty if the topic is not about them."""
    papers: list[str]
    """Published results about the topic."""
    here: list[str]
    """Effects of the topic in archlab's own runs."""
    claims: list[tuple[int, str, str]]
    """Number and name of each claim about the topic, and archlab's verdict with its caveat."""
    mistakes: list[Mistake]
    """Common errors about the topic."""
    sources: str
    """Citations of the topic's sources, separated by semicolons."""


def chapter_addresses() -> dict[str, str]:
    """Map the name of each chapter to the address of its page."""
    return {name: f"{number:02}-{name}.html" for number, name in enumerate(chapters(), start=1)}


def topic_addresses() -> dict[str, str]:
    """Map the name of each topic to its address on the page of its chapter."""
    pages = chapter_addresses()
    return {topic: f"{pages[name]}#{topic}" for name, chapter in chapters().items() for topic in chapter.topics}


def chapter_values(chapter: Chapter, pictures: Draws) -> dict[str, Any]:
    """Return the template values for a chapter's page. A topic's picture is left out if no function draws it."""
    pictures_drawn = {name: pictures[name]() for name in _named(chapter) if name in pictures}
    charts = {name: chart for name, chart in pictures_drawn.items() if not isinstance(chart, str)}
    return {
        "chapter": chapter,
        "entries": [topic_entry(name, topic) for name, topic in chapter.topics.items()],
        "svgs": {name: Markup(svg) for name, svg in pictures_drawn.items() if isinstance(svg, str)},
        "charts": charts,
        "captions": {name: chart.to_dict()["description"] for name, chart in charts.items()},
        "places": [(name, topic.title) for name, topic in chapter.topics.items()],
        "base": BASE,
        "context": CONTEXT,
    }


_BAR, _GAP, _TALL = 10, 4, 30
"""Width of a bar, the gap between bars, and the height of a bar of 100%, in pixels."""


def _sparkline(by_year: Mapping[int, tuple[int, int]]) -> Markup:
    """Return a bar per year for the share of models that make the choice. Each bar names its numbers, and the text
    beside it those of the last year."""
    if not by_year:
        return Markup()
    sentences = [f"{year}: {n_users} of {n_models}" for year, (n_users, n_models) in by_year.items()]
    bars = "".join(
        f"<g><title>{sentence}</title>"
        f'<rect x="{i * (_BAR + _GAP)}" y="0" width="{_BAR}" height="{_TALL}" fill="currentColor" opacity="0.12"/>'
        f'<rect x="{i * (_BAR + _GAP)}" y="{_TALL * (1 - share):.1f}" width="{_BAR}" height="{_TALL * share:.1f}" '
        'fill="currentColor"/></g>'
        for i, (sentence, share) in enumerate(
            zip(sentences, (n_users / n_models for n_users, n_models in by_year.values()), strict=True)
        )
    )
    years, width = [*by_year], len(by_year) * (_BAR + _GAP) - _GAP
    label = f"Share of models by year. {', '.join(sentences)}"
    return Markup(
        f'<small>{years[0]}</small><svg role="img" aria-label="{label}" viewBox="0 0 {width} {_TALL}" width="{width}" '
        f'height="{_TALL}">{bars}</svg><small>{sentences[-1]}</small>'
    )


def _named(chapter: Chapter) -> list[str]:
    return [name for topic in chapter.topics.values() for name in topic.pictures]


def _other_choice(topic: Topic) -> str:
    """Return the choice that a topic's cost is compared with: another topic, settings, or tiny-llama as it is."""
    config = flatten(resolved(configured(topic.against)))
    changed = {path: config[path] for path, value in topic.fields.items() if config.get(path, value) != value}
    titles = {name: topic.title for name, topic in topics()}
    names = list(explaining(changed, config))
    are_numbers = any(type(value) in (int, float) for value in changed.values())
    if names and len(names) <= _MOST_TITLES and titles.keys() >= {*names} and not are_numbers:
        return ", ".join(titles[name] for name in names)
    if not topic.against:
        return BASE
    return ", ".join(f"{path.rpartition('.')[2]}={to_yaml_line(value)}" for path, value in changed.items()) or "without"


_MOST_TITLES = 2
"""Maximum number of titles in the heading of a column."""


def topic_entry(name: str, topic: Topic) -> TopicEntry:
    """Return everything that a page shows about a topic."""
    used = usage(topic.conditions) if topic.conditions else None
    priced_models = prices(topic)
    entries = about(topic)
    return TopicEntry(
        name=name,
        topic=topic,
        used=used,
        used_in_words=in_words(used, topic.counted) if used else "",
        by_year=_sparkline(used.by_year) if used else Markup(),
        settings=[(setting, address_of_code(setting)) for setting in topic.settings],
        compared=[topic.title, _other_choice(topic), "equal size"][: len(priced_models)],
        rows=price_rows(priced_models),
        equal_size=equal_size(topic),
        intensity=intensity_table() if topic.intensity else [],
        papers=[published_line(effect) for effect in published(topic, entries)],
        here=[
            *measured_lines(measured(name, entries)),
            *map(words_over_sizes.line, measured_over_sizes(name, entries)),
        ],
        claims=numbered(entries),
        mistakes=mistakes_about(name),
        sources="; ".join(source.located for source in cited(topic.sources)),
    )
