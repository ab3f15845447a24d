"""The site itself: every page of every part, and the index."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from archlab.evidence.ledger import ledger
from archlab.evidence.topics import chapters, topics, topics_that_set
from archlab.files import make_folder, write_atomic
from archlab.report import html
from archlab.report.guide.bibliography import bibliography
from archlab.report.guide.documents import HOW_TO, TUTORIALS, address, document, links_from
from archlab.report.guide.lecture import Draws, chapter_addresses, chapter_values, topic_addresses
from archlab.report.guide.markdown import Rendered, line, render, slug
from archlab.report.guide.parts import BIBLIOGRAPHY, COMMANDS, INDEX, LEDGER, PYTHON, parts
from archlab.report.guide.python_api import python_api
from archlab.report.guide.reference import addresses, config_addresses, reference_pages
from archlab.report.ledger import page as ledger_page
from archlab.report.ledger.words import HOW_SURE

Page = tuple[str, str, dict[str, Any]]
"""Its address, its template, and what that shows."""


def write_guide(folder: Path, pictures: Draws, commands: str) -> Path:
    """Write the site into a folder; its first page. `commands`: their help, as Markdown."""
    make_folder(folder)
    rendered = {address(name): document(name) for name in (*TUTORIALS, *HOW_TO)}
    links = links_from(PurePosixPath())
    rendered |= {COMMANDS: render(commands, links), PYTHON: render(python_api(), links)}
    common = {
        "parts": parts({place: text.title for place, text in rendered.items()}),
        "chapters": chapters(),
        "chapter_addresses": chapter_addresses(),
        "line": line,
    }
    for place, template, values in _pages(rendered, pictures):
        page = html.template(f"guide_{template}.html.jinja").render(here=place, **common, **values)
        write_atomic(folder / place, page)
    write_atomic(folder / LEDGER, ledger_page.render(ledger(), guide=INDEX))
    return folder / INDEX


def _pages(rendered: dict[str, Rendered], pictures: Draws) -> Iterator[Page]:
    yield INDEX, "index", {}
    for place, text in rendered.items():
        yield place, "document", {"text": text}
    for name, chapter in chapters().items():
        yield chapter_addresses()[name], "chapter", chapter_values(chapter, pictures)
    yield from _reference(rendered[address("studies")])
    yield BIBLIOGRAPHY, "bibliography", {"cited": bibliography(), "how_sure": HOW_SURE}


def _reference(studies: Rendered) -> Iterator[Page]:
    """`studies`: the document that explains the fields of a study."""
    *config, study = reference_pages()
    titles, places = {name: topic.title for name, topic in topics()}, topic_addresses()
    made = {path: [(titles[name], places[name]) for name in topics_that_set(path)] for path in config_addresses()}
    for page in config:
        yield page.address, "reference", {"page": page, "addresses": config_addresses(), "more": made}
    found = addresses([study])
    shown = {
        path: [(studies.title, f"{address('studies')}#{slug(path)}")] if slug(path) in studies.anchors else []
        for path in found
    }
    yield study.address, "reference", {"page": study, "addresses": found, "more": shown}
