"""The site of the guide: its parts, pages, index and bibliography."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from archlab.evidence.claims import claims, mistakes, sources
from archlab.evidence.ledger import ledger
from archlab.evidence.topics import chapters, topics, topics_that_set
from archlab.files import make_folder, write_atomic
from archlab.report.guide.documents import (
    DocumentGroup,
    Rendered,
    address,
    document,
    document_groups,
    documents,
    links_from,
    render,
    slug,
    text_of,
)
from archlab.report.guide.lecture import Draws, chapter_addresses, chapter_values, topic_addresses
from archlab.report.guide.reference import addresses, config_addresses, reference_pages
from archlab.report.html import render_page
from archlab.report.ledger import page as ledger_page
from archlab.report.ledger.words import HOW_SURE, citation
from archlab.review.findings import RULES

INDEX = "index.html"
LEDGER = "ledger.html"
BIBLIOGRAPHY = "bibliography.html"
PYTHON = "reference-python.html"
COMMANDS = "reference-commands.html"


class SitePart(NamedTuple):
    """Part of the site: a list of pages that belong together."""

    name: str
    title: str
    about: str
    pages: dict[str, str]
    """Titles of the pages, by address."""

    @property
    def address(self) -> str:
        """Address of the part. It is an anchor on the index page, or the part's page if there is only one."""
        return next(iter(self.pages)) if len(self.pages) == 1 else f"{INDEX}#{self.name}"


PageLink = tuple[str, str]
"""Address and title of a page."""

Page = tuple[str, str, dict[str, Any]]
"""A page of the site: its address, the name of its template, and the template's values."""


def write_guide(folder: Path, pictures: Draws, commands: str, python_api: str) -> Path:
    """Write the site into a folder, and return the path of its first page.

    `commands` (the help of all commands) and `python_api` are Markdown.
    """
    make_folder(folder)
    reference_pages()  # before the ledger reads studies, whose plug-ins are not part of the reference
    rendered = {address(name): document(name) for name in documents()}
    links, generated = links_from(PurePosixPath()), {COMMANDS: commands, PYTHON: python_api}
    rendered |= {place: render(_DOCUMENT.sub(r"[\1](\1)", text), links) for place, text in generated.items()}
    all_parts = parts({place: text.title for place, text in rendered.items()})
    common = {
        "parts": all_parts,
        "neighbors": neighbors(all_parts),
        "chapters": chapters(),
        "chapter_addresses": chapter_addresses(),
    }
    for place, template, values in _pages(rendered, pictures):
        write_atomic(folder / place, render_page(f"guide_{template}", here=place, **common, **values))
    write_atomic(folder / LEDGER, ledger_page.render(ledger(), here=LEDGER, **common))
    return folder / INDEX


def neighbors(all_parts: Sequence[SitePart]) -> dict[str, tuple[PageLink | None, PageLink | None]]:
    """Map the address of each page to the previous page and the next page, in the order of the parts."""
    pages = [(INDEX, "archlab guide"), *(page for part in all_parts for page in part.pages.items())]
    around = zip([None, *pages], pages, [*pages[1:], None], strict=False)
    return {page[0]: (before, after) for before, page, after in around}


def _pages(rendered: dict[str, Rendered], pictures: Draws) -> Iterator[Page]:
    yield INDEX, "index", {}
    for place, text in rendered.items():
        yield place, "document", {"text": text}
    for name, chapter in chapters().items():
        yield chapter_addresses()[name], "chapter", chapter_values(chapter, pictures)
    yield from _reference(rendered[address("studies")])
    yield BIBLIOGRAPHY, "bibliography", {"cited": bibliography(), "how_sure": HOW_SURE}


def _reference(studies: Rendered) -> Iterator[Page]:
    *config, study = reference_pages()
    titles, places = {name: topic.title for name, topic in topics()}, topic_addresses()
    topics_by_field = {
        path: [(titles[name], places[name]) for name in topics_that_set(path)] for path in config_addresses()
    }
    for page in config:
        yield page.address, "reference", {"page": page, "addresses": config_addresses(), "more": topics_by_field}
    study_addresses = addresses([study])
    documents_by_field = {
        path: [(studies.title, f"{address('studies')}#{slug(path)}")] if slug(path) in studies.anchors else []
        for path in study_addresses
    }
    yield study.address, "reference", {"page": study, "addresses": study_addresses, "more": documents_by_field}


def parts(titles: Mapping[str, str]) -> list[SitePart]:
    """Return the parts of the site. `titles` maps the address of each Markdown page to its title."""
    *for_users, for_contributors = (_part(group, titles) for group in document_groups())
    return [
        *for_users,
        SitePart(
            "lecture",
            "Lecture",
            "Every architectural choice: its formula, what it does, why people use it, which models use it, what it "
            "costs, and a command to try it. Counts and costs are computed from the configs of published models. "
            "“Unverified” lists models that make the choice according to a source that archlab could not check. The "
            "brackets after a paper's numbers say how they were read: a secondary source repeats them from the paper.",
            {chapter_addresses()[name]: chapter.title for name, chapter in chapters().items()},
        ),
        SitePart("ledger", "Ledger", "Claims about architectures, and what was found.", {LEDGER: "The ledger"}),
        SitePart(
            "fields",
            "Fields, commands and functions",
            "Every field of a file, every command and every function, as the code itself describes them.",
            {page.address: page.title for page in reference_pages()} | {at: titles[at] for at in (COMMANDS, PYTHON)},
        ),
        for_contributors,
        SitePart(
            "bibliography",
            "Bibliography",
            "All sources, each with the pages that cite it.",
            {BIBLIOGRAPHY: "Bibliography"},
        ),
    ]


def _part(group: DocumentGroup, titles: Mapping[str, str]) -> SitePart:
    pages = {address(name): titles[address(name)] for name in group.names}
    return SitePart(slug(group.title), group.title, group.about, pages)


_DOCUMENT = re.compile(r"docs/(\w+\.md)")
"""Path of a document in help pages and docstrings."""

_NUMBER = re.compile(r"arXiv (\d{4}\.\d{5})")


def bibliography() -> dict[str, list[PageLink]]:
    """Map each source, in alphabetical order, to the titles and addresses of the pages that cite it."""
    places: dict[str, dict[PageLink, None]] = {}
    for keys, link in _citing():
        for key in dict.fromkeys(keys):
            places.setdefault(citation(sources()[key]), {})[link] = None
    return {source: [*places[source]] for source in sorted(places, key=str.lower)}


def _citing() -> Iterator[tuple[Iterable[str], tuple[str, str]]]:
    addresses = topic_addresses()
    for name, topic in topics():
        yield topic.sources, (topic.title, addresses[name])
    for claim in claims().values():
        yield [*claim.sources, *claim.also_cited], (f"claim {claim.number}", f"{LEDGER}#claim-{claim.number}")
    for mistake in mistakes():
        yield mistake.sources, ("common errors", f"{LEDGER}#mistakes-heading")
    for rule in RULES:
        cites = [*rule.sources, *(point.source for point in rule.measured)]
        yield cites, (f"archlab check: {rule.name}", COMMANDS)
    numbers = {key: _NUMBER.search(source.where or "") for key, source in sources().items()}
    for name in documents():
        text = text_of(name)
        keys_cited = [key for key, number in numbers.items() if number and number[1] in text]
        yield keys_cited, (text.partition("\n")[0].removeprefix("# "), address(name))
