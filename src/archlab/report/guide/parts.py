"""The parts of the site and their pages, as its index and every page's navigation list them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from archlab.evidence.topics import chapters
from archlab.report.guide.documents import HOW_TO, TUTORIALS, address
from archlab.report.guide.lecture import chapter_addresses
from archlab.report.guide.reference import reference_pages

INDEX = "index.html"
LEDGER = "ledger.html"
BIBLIOGRAPHY = "bibliography.html"
PYTHON = "reference-python.html"
COMMANDS = "reference-commands.html"


class Part(NamedTuple):
    """Pages that belong together."""

    name: str
    title: str
    about: str
    pages: dict[str, str]
    """Address -> title."""

    @property
    def address(self) -> str:
        """Its place on the index, or its only page."""
        return next(iter(self.pages)) if len(self.pages) == 1 else f"{INDEX}#{self.name}"


def parts(titles: Mapping[str, str]) -> list[Part]:
    """`titles`: address -> title of the pages that were made of Markdown."""
    return [
        Part("tutorials", "Tutorials", "A question each, to its answer.", _of(TUTORIALS, titles)),
        Part("how-to", "How-to", "A subject each, with examples.", _of(HOW_TO, titles)),
        Part(
            "lecture",
            "Lecture",
            "Every choice: its formula, what it does and why people make it, who does, what it costs, and one command "
            "to try it. Counts and costs are computed from the configs of published models.",
            {chapter_addresses()[name]: chapter.title for name, chapter in chapters().items()},
        ),
        Part("ledger", "Ledger", "What is claimed of architectures, and what was found.", {LEDGER: "The ledger"}),
        Part(
            "reference",
            "Reference",
            "Every field of a file, every command and every function, as the code itself describes them.",
            {page.address: page.title for page in reference_pages()} | {at: titles[at] for at in (COMMANDS, PYTHON)},
        ),
        Part("bibliography", "Bibliography", "Sources, each with what cites it.", {BIBLIOGRAPHY: "Bibliography"}),
    ]


def _of(names: Iterable[str], titles: Mapping[str, str]) -> dict[str, str]:
    return {address(name): titles[address(name)] for name in names}
