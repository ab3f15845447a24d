"""Who is cited, and where."""

from archlab.evidence.read import claims, sources
from archlab.evidence.topics import topics
from archlab.report.guide.lecture import topic_addresses
from archlab.report.guide.parts import LEDGER
from archlab.report.ledger_words import said


def bibliography() -> dict[str, list[tuple[str, str]]]:
    """Source -> title and address of the topics and claims that cite it, by alphabet."""
    addresses = topic_addresses()
    places: dict[str, list[tuple[str, str]]] = {}
    for name, topic in topics():
        for key in topic.sources:
            places.setdefault(said(sources()[key]), []).append((topic.title, addresses[name]))
    for claim in claims().values():
        for key in claim.sources:
            link = (f"claim {claim.number}", f"{LEDGER}#claim-{claim.number}")
            places.setdefault(said(sources()[key]), []).append(link)
    return dict(sorted(places.items(), key=lambda item: item[0].lower()))
