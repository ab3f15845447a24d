"""Search over everything by name: choices, models, fields, claims, studies and runs."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from archlab.config.io import facts, presets, studies
from archlab.evidence.claims import claims
from archlab.evidence.field_help import field_help
from archlab.evidence.look_up import plain
from archlab.evidence.topics import topics
from archlab.evidence.words import spellings
from archlab.files import STUDY
from archlab.training.run_files import METRICS
from archlab.ui.configs import folders_with

_MOST_RESULTS = 20
"""Maximum number of places that the search lists."""


class Result(NamedTuple):
    """Place that the search finds."""

    title: str
    kind: str
    address: str


def search(text: str, root: Path) -> list[Result]:
    """Return the places whose name or another word for them contains the text, the best ones first. Studies and runs
    below the folder `root` are places, too."""
    wanted = plain(text)
    if not wanted:
        return []
    ranked = [
        (min(_rank(word, wanted) for word in words), result)
        for result, words in (*_places(), *_places_below(root))
        if any(wanted in word for word in words)
    ]
    return [result for _, result in sorted(ranked, key=lambda pair: pair[0])[:_MOST_RESULTS]]


def _rank(word: str, wanted: str) -> tuple[int, int]:
    kind = 0 if word == wanted else 1 if word.startswith(wanted) else 2 if wanted in word else 3
    return kind, len(word)


@cache
def _places() -> list[tuple[Result, list[str]]]:
    return [(result, [plain(word) for word in words]) for result, words in _named_places()]


def _places_below(root: Path) -> Iterator[tuple[Result, list[str]]]:
    for file, kind, screen_of in ((STUDY, "your study", "/studies/of"), (METRICS, "your run", "/runs/of")):
        for folder in folders_with(file, root):
            yield Result(str(folder), kind, f"{screen_of}/{quote(str(folder))}"), [plain(str(folder))]


def _named_places() -> Iterator[tuple[Result, list[str]]]:
    for name, topic in topics():
        words = [name, topic.title, *topic.aliases, *spellings().get(name, ())]
        yield Result(topic.title, "choice", f"/choice/{quote(name)}"), words
    about = {number: name for name, topic in reversed([*topics()]) for number in topic.claims}
    for number, name in sorted(about.items()):
        claim = claims()[number]
        words = [claim.name, f"claim {number}", claim.statement]
        yield Result(f"{number}. {claim.name}", "claim", f"/choice/{quote(name)}#claim-{number}"), words
    for name in (*presets(), *facts()):
        yield Result(name, "model", f"/models/{quote(name)}"), [name]
    for name in studies():
        yield Result(name, "study", f"/studies/new?from={quote(name)}"), [name]
    for path in field_help():
        yield Result(path, "field", f"/choice/{quote(path)}"), [path, path.rpartition(".")[2]]
