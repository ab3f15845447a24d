"""The guide: a page per chapter of topics, in lecture order, an index, the ledger and a bibliography."""

from collections.abc import Callable, Mapping
from pathlib import Path

import altair as alt
from markupsafe import Markup

from archlab.config.base import Base
from archlab.evidence.ledger import ledger
from archlab.evidence.price import BASE, CONTEXT, price_rows, prices
from archlab.evidence.read import cited, claims, sources
from archlab.evidence.topics import Chapter, Topic, chapters, topics
from archlab.evidence.usage import Usage, in_words, usage
from archlab.files import make_folder, write_atomic
from archlab.report import html
from archlab.report.ledger_page import write_ledger
from archlab.report.ledger_words import HOW_SURE, in_a_line, said
from archlab.report.palette import MODES, dots_theme

Draws = Mapping[str, Callable[[], str | alt.TopLevelMixin]]
"""Name of a picture -> what draws it: SVG, or a chart, which takes its colours from the page."""


class Entry(Base):
    """A topic as its page shows it."""

    name: str
    topic: Topic
    used: Usage | None
    """null: not known of published models."""
    used_in_words: str
    rows: list[tuple[str, str, str]]
    """What it costs; empty where it costs nothing, or is no choice of a model."""
    claims: list[tuple[int, str]]
    """Number, and in a line what is claimed of it and what was found here."""
    sources: str
    """Who says so, and where."""


def write_guide(folder: Path, pictures: Draws) -> Path:
    """Write the site into a folder; its first page. Topics name their pictures; one that there is not is left out."""
    make_folder(folder)
    found = chapters()
    page_of = {name: f"{number:02}-{name}.html" for number, name in enumerate(found, start=1)}
    common = {"pages": page_of, "chapters": found}
    for page_name, chapter in found.items():
        drawn = {name: pictures[name]() for name in _named(chapter) if name in pictures}
        charts = {name: chart for name, chart in drawn.items() if not isinstance(chart, str)}
        page = html.template("guide_chapter.html.jinja").render(
            chapter=chapter,
            entries=_entries(chapter),
            svgs={name: Markup(svg) for name, svg in drawn.items() if isinstance(svg, str)},
            specs={name: html.full_width(chart) for name, chart in charts.items()},
            themes={mode: dots_theme(mode) for mode in MODES},
            base=BASE,
            context=CONTEXT,
            **common,
        )
        write_atomic(folder / page_of[page_name], page)
    write_atomic(
        folder / "bibliography.html",
        html.template("guide_bibliography.html.jinja").render(cited=_cited(page_of), how_sure=HOW_SURE, **common),
    )
    write_ledger(ledger(), folder / "ledger.html")
    index = folder / "index.html"
    write_atomic(index, html.template("guide_index.html.jinja").render(**common))
    return index


def _named(chapter: Chapter) -> list[str]:
    return [name for topic in chapter.topics.values() for name in topic.pictures]


def _entries(chapter: Chapter) -> list[Entry]:
    return [_entry(name, topic) for name, topic in chapter.topics.items()]


def _entry(name: str, topic: Topic) -> Entry:
    used = usage(topic.conditions) if topic.conditions else None
    found = prices(topic)
    return Entry(
        name=name,
        topic=topic,
        used=used,
        used_in_words=in_words(used) if used else "",
        rows=price_rows(*found) if found else [],
        claims=[
            (entry.claim.number, in_a_line(entry)) for entry in ledger(chosen=map(claims().__getitem__, topic.claims))
        ],
        sources="; ".join(source.located for source in cited(topic.sources)),
    )


def _cited(page_of: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Source -> title and address of the topics and claims that cite it, by alphabet."""
    chapter_of = {name: page_of[chapter] for chapter, found in chapters().items() for name in found.topics}
    places: dict[str, list[tuple[str, str]]] = {}
    for name, topic in topics():
        for key in topic.sources:
            places.setdefault(said(sources()[key]), []).append((topic.title, f"{chapter_of[name]}#{name}"))
    for claim in claims().values():
        for key in claim.sources:
            link = (f"claim {claim.number}", f"ledger.html#claim-{claim.number}")
            places.setdefault(said(sources()[key]), []).append(link)
    return dict(sorted(places.items(), key=lambda item: item[0].lower()))
