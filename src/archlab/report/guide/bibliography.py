"""Who is cited, and where."""

import re
from collections.abc import Iterable, Iterator

from archlab.evidence.claims import claims, mistakes, sources
from archlab.evidence.topics import topics
from archlab.report.guide.documents import HOW_TO, address, text_of
from archlab.report.guide.lecture import topic_addresses
from archlab.report.guide.parts import COMMANDS, LEDGER
from archlab.report.ledger.words import said
from archlab.review.findings import RULES

_NUMBER = re.compile(r"arXiv (\d{4}\.\d{5})")


def bibliography() -> dict[str, list[tuple[str, str]]]:
    """Source -> title and address of what cites it, by alphabet."""
    places: dict[str, list[tuple[str, str]]] = {}
    for keys, link in _citing():
        for key in dict.fromkeys(keys):
            places.setdefault(said(sources()[key]), []).append(link)
    return dict(sorted(places.items(), key=lambda item: item[0].lower()))


def _citing() -> Iterator[tuple[Iterable[str], tuple[str, str]]]:
    """Keys of sources, and the place that names them."""
    addresses = topic_addresses()
    for name, topic in topics():
        yield topic.sources, (topic.title, addresses[name])
    for claim in claims().values():
        yield [*claim.sources, *claim.also_cited], (f"claim {claim.number}", f"{LEDGER}#claim-{claim.number}")
    for mistake in mistakes():
        yield mistake.sources, ("errors in circulation", f"{LEDGER}#mistakes-heading")
    for rule in RULES:
        cites = [*rule.sources, *(point.source for point in rule.measured)]
        yield cites, (f"archlab check: {rule.name}", COMMANDS)
    numbers = {key: _NUMBER.search(source.where or "") for key, source in sources().items()}
    for name in HOW_TO:
        text = text_of(name)
        named = [key for key, number in numbers.items() if number and number[1] in text]
        yield named, (text.partition("\n")[0].removeprefix("# "), address(name))
