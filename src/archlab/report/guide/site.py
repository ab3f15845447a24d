"""The site of the guide: its parts, pages, index and bibliography."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from archlab.evidence.claims import claims, mistakes, sources
from archlab.evidence.ledger import ledger
from archlab.evidence.topics import chapters, topics, topics_that_set
from archlab.evidence.words import spellings
from archlab.files import make_folder, write_atomic
from archlab.report.guide.documents import (
    DocumentGroup,
    Rendered,
    Section,
    address,
    document,
    document_groups,
    documents,
    links_from,
    render,
    sections,
    slug,
    text_of,
)
from archlab.report.guide.lecture import Draws, chapter_addresses, chapter_values, topic_addresses
from archlab.report.guide.reference import addresses, config_addresses, reference_pages
from archlab.report.guide.search import SearchEntry, search_index
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
    generated = {COMMANDS: sections(commands, "command"), PYTHON: sections(python_api, "python")}
    rendered = {address(name): document(name) for name in documents()}
    for place, (overview, split) in generated.items():
        rendered |= _rendered([Section(place, "", overview), *split], {section.address for section in split})
    titles = {place: text.title for place, text in rendered.items()}
    all_parts = parts(titles, *([place, *(section.address for section in generated[place][1])] for place in generated))
    common = {
        "parts": all_parts,
        "neighbors": neighbors(all_parts),
        "chapters": chapters(),
        "chapter_addresses": chapter_addresses(),
        "search_index": search_index(_entries(all_parts, rendered)),
    }
    for place, template, values in _pages(rendered, pictures):
        write_atomic(folder / place, render_page(f"guide_{template}", here=place, **common, **values))
    write_atomic(folder / LEDGER, ledger_page.render(ledger(), here=LEDGER, **common))
    return folder / INDEX


def _rendered(pages: Sequence[Section], own: set[str]) -> dict[str, Rendered]:
    """Return generated pages of Markdown by address. They may link to documents and to the pages in `own`."""
    links = links_from(PurePosixPath())
    links = links._replace(page=lambda href: href if href in own else links_from(PurePosixPath()).page(href))
    return {page.address: render(_DOCUMENT.sub(r"[\1](\1)", page.text), links) for page in pages}


def _entries(all_parts: Sequence[SitePart], rendered: Mapping[str, Rendered]) -> Iterator[SearchEntry]:
    """Yield everything that the search finds: pages, topics, claims, fields and the sections of documents."""
    for part in all_parts:
        for place, title in part.pages.items():
            yield SearchEntry(title, place, part.title)
    spelled = spellings()
    places = topic_addresses()
    for name, topic in topics():
        yield SearchEntry(topic.title, places[name], "topic", (name, *topic.aliases, *spelled.get(name, ())))
    for claim in claims().values():
        yield SearchEntry(f"{claim.number}. {claim.name}", f"{LEDGER}#claim-{claim.number}", "claim", (claim.name,))
    reference = reference_pages()
    for kind, pages in (("field of a config", reference.config), ("field of a study", reference.study)):
        for path, place in addresses(pages).items():
            yield SearchEntry(path, place, kind)
    for place, text in rendered.items():
        for anchor, title in text.contents:
            yield SearchEntry(title, f"{place}#{anchor}", text.title)


def neighbors(all_parts: Sequence[SitePart]) -> dict[str, tuple[PageLink | None, PageLink | None]]:
    """Map the address of each page to the previous page and the next page, in the order of the parts."""
    pages = [(INDEX, "archlab guide"), *(page for part in all_parts for page in part.pages.items())]
    around = zip([None, *pages], pages, [*pages[1:], None], strict=False)
    return {page[0]: (before, after) for before, page, after in around}


def _pages(rendered: dict[str, Rendered], pictures: Draws) -> Iterator[Page]:
    yield INDEX, "index", {"places": []}
    for place, text in rendered.items():
        yield place, "document", {"text": text, "places": text.contents}
    for name, chapter in chapters().items():
        yield chapter_addresses()[name], "chapter", chapter_values(chapter, pictures)
    yield from _reference(rendered[address("studies")])
    yield BIBLIOGRAPHY, "bibliography", {"cited": bibliography(), "how_sure": HOW_SURE, "places": []}


def _reference(studies: Rendered) -> Iterator[Page]:
    reference = reference_pages()
    titles, places = {name: topic.title for name, topic in topics()}, topic_addresses()
    topics_by_field = {
        path: [(titles[name], places[name]) for name in topics_that_set(path)] for path in config_addresses()
    }
    study_addresses = addresses(reference.study)
    documents_by_field = {
        path: [(studies.title, f"{address('studies')}#{slug(path)}")] if slug(path) in studies.anchors else []
        for path in study_addresses
    }
    for pages, at, more in (
        (reference.config, config_addresses(), topics_by_field),
        (reference.study, study_addresses, documents_by_field),
    ):
        for page in pages:
            values = {"page": page, "addresses": at, "more": more, "places": page.places}
            yield page.address, "reference", values


def parts(titles: Mapping[str, str], commands: Sequence[str], python: Sequence[str]) -> list[SitePart]:
    """Return the parts of the site. `titles` maps the address of each Markdown page to its title. `commands` and
    `python` are the addresses of the pages about commands and about functions."""
    reference = reference_pages()
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
            "Fields of a config",
            "Every field of a config, as the code itself describes it.",
            {page.address: page.title for page in reference.config},
        ),
        SitePart(
            "study-fields",
            "Fields of a study",
            "Every field of a study, as the code itself describes it.",
            {page.address: page.title for page in reference.study},
        ),
        SitePart(
            "commands",
            "Commands",
            "Every command, with the text of its `--help`.",
            {at: titles[at] for at in commands},
        ),
        SitePart(
            "python",
            "Python",
            "Every function and class of `import archlab`, with its docstring.",
            {at: titles[at] for at in python},
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
