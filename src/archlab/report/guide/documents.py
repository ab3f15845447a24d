"""User documents as pages of the site: tutorials and how-to guides, rendered from Markdown."""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, count, pairwise
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import NamedTuple
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from archlab.code import HOME
from archlab.report.guide.reference import address_of_code
from archlab.report.html import unbroken

_NO_PAGE = "notebook"
"""Name of the only document without a page. It contains dated findings for contributors."""


class DocumentGroup(NamedTuple):
    """Documents that docs/README.md lists under one heading."""

    title: str
    about: str
    """First paragraph of the group in docs/README.md."""
    names: tuple[str, ...]
    """Paths of the documents in docs/ without their suffix, in order."""


class Rendered(NamedTuple):
    """A document that has been rendered for its page."""

    title: str
    body: Markup
    """HTML of the document without its title."""
    anchors: dict[str, str]
    """Map each anchor to the text of its heading or defined term."""
    contents: list[tuple[str, str]]
    """Anchor and text of each top-level heading."""


class Links(NamedTuple):
    """Functions that adapt a document's links, pictures and field names to the site."""

    page: Callable[[str], str | None]
    """Map the address of a link to its page on the site, or to None if the site has no page for it."""
    title: Callable[[str, str], str]
    """Map the text and the address of a link to its text on the site. The file name of a document becomes the
    document's title."""
    image: Callable[[str], str]
    """Map the address of a picture to the picture as a data URL, because pages load no other files."""
    field: Callable[[str], str | None]
    """Map a dotted field to the address of its explanation, or to None if the text is not a field."""


def documents_folder() -> Path:
    """Return the folder of the documents. In a wheel, it is inside the package. In a checkout, it is two levels above
    the package."""
    inside = HOME / "docs"
    return inside if inside.is_dir() else HOME.parent.parent / "docs"


@cache
def document_groups() -> tuple[DocumentGroup, ...]:
    """Return the groups of documents in docs/README.md, in order."""
    sections = (section.partition("\n") for section in text_of("README").split("\n## ")[1:])
    return tuple(
        DocumentGroup(
            title,
            text.strip().partition("\n\n")[0],
            tuple(name for name in re.findall(r"\]\(([\w/]+)\.md\)", text) if name != _NO_PAGE),
        )
        for title, _, text in sections
    )


def documents() -> tuple[str, ...]:
    """Return the names of all documents that have a page on the site."""
    return tuple(name for group in document_groups() for name in group.names)


def address(name: str) -> str:
    return f"{PurePosixPath(name).name}.html"


def document(name: str) -> Rendered:
    """Return the rendered document with this name, which must be one of `documents()`."""
    return render(text_of(name), links_from(PurePosixPath(name).parent))


def text_of(name: str) -> str:
    return (documents_folder() / f"{name}.md").read_text(encoding="utf-8")


def links_from(here: PurePosixPath) -> Links:
    """Return the `Links` functions for a document in the folder `here`. A link to another document leads to its page. A
    link to any other file leads to no page."""

    def page(href: str) -> str | None:
        path, hash_, place = href.partition("#")
        if not path or urlsplit(href).scheme:
            return href
        linked = normpath(here / path).removesuffix(".md")
        return f"{address(linked)}{hash_}{place}" if linked in documents() else None

    def title(text: str, href: str) -> str:
        linked = normpath(here / href.partition("#")[0]).removesuffix(".md")
        is_file_name = text.endswith(".md") and linked in documents()
        return text_of(linked).partition("\n")[0].removeprefix("# ") if is_file_name else text

    def image(source: str) -> str:
        drawn = (documents_folder() / here / source).read_bytes()
        kind = "png" if source.endswith(".png") else "svg+xml"
        return f"data:image/{kind};base64,{b64encode(drawn).decode()}"

    return Links(page, title, image, address_of_code)


_DOCUMENT = MarkdownIt("js-default")


def render(text: str, links: Links) -> Rendered:
    """Render a Markdown document whose first line is its title."""
    tokens = _DOCUMENT.parse(text)
    title, tokens = tokens[1], tokens[3:]
    anchors = _set_anchors(tokens)
    headings = [str(token.attrGet("id")) for token in tokens if token.type == "heading_open" and token.tag == "h2"]
    _label_cells(tokens)
    for token in tokens:
        token.children = list(_linked(token.children or [], links))
    return Rendered(_plain(title), _html(tokens), anchors, [(anchor, anchors[anchor]) for anchor in headings])


class Section(NamedTuple):
    """A part of a Markdown document that has its own page."""

    address: str
    title: str
    text: str
    """Markdown of the section, which begins with its title."""


def sections(text: str, prefix: str) -> tuple[str, list[Section]]:
    """Split a document at its headings of the second level. Return the text before the first one, followed by a list of
    links to the sections, and the sections. Their addresses begin with `prefix`."""
    intro, *parts = re.split(r"(?m)^## ", text)
    titles = [part.partition("\n")[0].strip() for part in parts]
    found = [
        Section(f"{prefix}-{slug(title.removeprefix('archlab').strip(' .'))}.html", title, _one_level_up(part))
        for title, part in zip(titles, parts, strict=True)
    ]
    links = (f"- [`{section.title}`]({section.address}): {_first_sentence(section.text)}" for section in found)
    return "\n".join([intro, *links]), found


def _one_level_up(section: str) -> str:
    return re.sub(r"(?m)^##(#+ )", r"#\1", f"# {section}")


def _first_sentence(section: str) -> str:
    _, _, after_title = section.partition("\n")
    prose = re.sub(r"(?s)```.*?```", "", after_title)
    first = next(part for part in re.split(r"\n\s*\n", prose) if part.strip())
    return re.split(r"(?<=\.)\s", " ".join(first.split()))[0]


def slug(text: str) -> str:
    """Return the anchor of a heading, as GitHub generates it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or [])


def _set_anchors(tokens: Sequence[Token]) -> dict[str, str]:
    anchors: dict[str, str] = {}
    for opening, inline in pairwise(tokens):
        if text := _plain(inline) if opening.type == "heading_open" else _defined(opening, inline):
            base = slug(text)
            anchor = next(name for name in chain([base], (f"{base}-{n}" for n in count(1))) if name not in anchors)
            anchors[anchor] = text
            opening.attrSet("id", anchor)
    return anchors


def _defined(opening: Token, inline: Token) -> str:
    children = [child for child in inline.children or [] if child.type != "text" or child.content]
    if opening.type != "paragraph_open" or not children or children[0].type != "strong_open":
        return ""
    return children[1].content


def _label_cells(tokens: Sequence[Token]) -> None:
    """Label each table cell with the heading of its column. The label is shown beside the cell on narrow screens."""
    headings: list[str] = []
    column = 0
    for opening, inline in pairwise(tokens):
        match opening.type:
            case "table_open":
                headings = []
            case "tr_open":
                column = 0
            case "th_open":
                headings.append(_plain(inline))
            case "td_open":
                opening.attrSet("data-label", headings[column])
                column += 1


def _linked(children: Sequence[Token], links: Links) -> Iterator[Token]:
    """Yield the tokens, with links to pages of the site and to schema fields. Other links become plain text."""
    href, address = "", None
    in_link = False
    for child in children:
        match child.type:
            case "link_open":
                href, in_link = str(child.attrGet("href")), True
                address = links.page(href)
                if address is None:
                    continue
                child.attrSet("href", address)
            case "link_close":
                in_link = False
                if address is None:
                    continue
            case "text" if in_link and address is not None:
                child.content = links.title(child.content, href)
            case "image":
                child.attrSet("src", links.image(str(child.attrGet("src"))))
            case "code_inline" if not in_link and (field := links.field(child.content)):
                yield Token("link_open", "a", 1, attrs={"href": field})
                yield child
                yield Token("link_close", "a", -1)
                continue
        yield child


def _html(tokens: list[Token]) -> Markup:
    html = _DOCUMENT.renderer.render(tokens, _DOCUMENT.options, {})
    html = unbroken(html).replace("<table>", '<div class="scroll" tabindex="0">\n<table class="prose">')
    return Markup(html.replace("</table>", "</table>\n</div>").replace("<pre>", '<pre tabindex="0">'))
