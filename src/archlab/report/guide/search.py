"""Index of the guide's search. Every page contains it as JSON, so the search works without a server."""

from collections.abc import Iterable
from json import dumps
from typing import NamedTuple

from markupsafe import Markup


class SearchEntry(NamedTuple):
    """A place that the search finds."""

    title: str
    address: str
    """Address of a page, with an anchor if the place is a part of the page."""
    kind: str
    """Kind of place, which the results show under the title."""
    spellings: tuple[str, ...] = ()
    """Other words by which the place is found."""


def search_index(entries: Iterable[SearchEntry]) -> Markup:
    """Return the index as JSON. Entries refer to pages and kinds by their positions in lists, because these repeat."""
    pages, kinds = dict[str, int](), dict[str, int]()
    rows = list[list[object]]()
    for title, address, kind, spellings in entries:
        page, _, anchor = address.partition("#")
        places = (pages.setdefault(page, len(pages)), anchor, kinds.setdefault(kind, len(kinds)))
        rows.append([title, *places, [text for text in dict.fromkeys(spellings) if text != title]])
    index = dumps(
        {"pages": list(pages), "kinds": list(kinds), "entries": rows}, ensure_ascii=False, separators=(",", ":")
    )
    return Markup(index.replace("<", "\\u003c"))
