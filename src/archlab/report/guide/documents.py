"""The documents for users, as pages of the site: tutorials and how-to's, written in Markdown."""

from base64 import b64encode
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import urlsplit

from archlab.code import HOME
from archlab.report.guide.markdown import Links, Rendered, render
from archlab.report.guide.reference import address_of_code

TUTORIALS = ("tutorials/student", "tutorials/researcher", "tutorials/engineer")

HOW_TO = (
    "studies",
    "probes",
    "watching",
    "optimisers",
    "cost",
    "drawing",
    "run_folder",
    "data",
    "scaling",
    "executors",
    "claims",
    "plugins",
    "conventions",
    "architecture",
    "adding_a_choice",
    "adding_a_component",
    "adding_a_family",
    "topics",
)


def documents_folder() -> Path:
    """Where they lie: in a wheel inside the package, in a checkout two folders above it."""
    inside = HOME / "docs"
    return inside if inside.is_dir() else HOME.parent.parent / "docs"


def address(name: str) -> str:
    """The page of a document."""
    return f"{PurePosixPath(name).name}.html"


def document(name: str) -> Rendered:
    """One of TUTORIALS or HOW_TO."""
    return render(text_of(name), links_from(PurePosixPath(name).parent))


def text_of(name: str) -> str:
    """Its Markdown."""
    return (documents_folder() / f"{name}.md").read_text(encoding="utf-8")


def links_from(here: PurePosixPath) -> Links:
    """What a text in that folder of the documents links to: others are pages, too; what is no document is not there."""

    def page(href: str) -> str | None:
        path, hash_, place = href.partition("#")
        if not path or urlsplit(href).scheme:
            return href
        linked = normpath(here / path).removesuffix(".md")
        return f"{address(linked)}{hash_}{place}" if linked in (*TUTORIALS, *HOW_TO) else None

    def title(said: str) -> str:
        linked = normpath(here / said).removesuffix(".md")
        return text_of(linked).partition("\n")[0].removeprefix("# ") if linked in (*TUTORIALS, *HOW_TO) else said

    def image(source: str) -> str:
        drawn = (documents_folder() / here / source).read_bytes()
        return f"data:image/svg+xml;base64,{b64encode(drawn).decode()}"

    return Links(page, title, image, address_of_code)
