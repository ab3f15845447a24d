"""Search over everything by name: choices, models, fields, claims, studies and runs."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from archlab.config.io import facts, presets, studies
from archlab.evidence.claims import claims
from archlab.evidence.field_help import field_help
from archlab.evidence.look_up import plain
from archlab.evidence.topics import chapters, topics
from archlab.evidence.words import spellings
from archlab.files import STUDY
from archlab.training.run_files import METRICS
from archlab.ui.configs import folders_with, in_address, own_configs

MOST_RESULTS = 20
"""Maximum number of places that the page lists."""

_SHORTEST_PART = 2
"""Length of the shortest word of a text that is searched for alone."""

_LIKENESS = 0.75
"""Likeness from 0 to 1 that a word needs, so that it counts as another spelling."""


class Result(NamedTuple):
    """Place that the search finds."""

    title: str
    kind: str
    address: str


_Place = tuple[Result, list[str]]
"""Place, and its names and other words for it, normalized with `plain`."""


def search(text: str, root: Path) -> list[Result]:
    """Return the places whose name or another word for them contains the text, the best ones first. If there are none,
    return those that contain some of its words. If no name begins with what was typed, add those that are spelled
    nearly like it.

    Studies, runs and configs below the folder `root` are places, too.
    """
    places = [*_places(), *_places_below(root)]
    typed = [part for word in text.split() if len(part := plain(word)) >= _SHORTEST_PART]
    whole = plain(text)
    found = _containing([whole], places) or _containing(typed, places)
    if any(word.startswith((whole, *typed)) for _, words in places for word in words):
        return found
    return list(dict.fromkeys([*found, *_spelled_nearly(typed, places)]))


def _containing(parts: Sequence[str], places: Iterable[_Place]) -> list[Result]:
    """Return the places whose words contain a part. Those with the most parts come first, then those whose word is
    nearest to its part. Among equally near ones, fields come last, because each choice has several."""
    ranked = [(_rank(parts, words), result) for result, words in places]
    found = [(n, near, result.kind == "field", length, result) for (n, near, length), result in ranked if n]
    return [result for *_, result in sorted(found, key=lambda place: place[:-1])]


def _rank(parts: Sequence[str], words: Sequence[str]) -> tuple[int, int, int]:
    """Return the negative number of parts that a word contains, and the distance of the word that is nearest to its
    part."""
    near = [
        min(found) for part in parts if (found := [_distance(word, part) for word in words if part and part in word])
    ]
    return (-len(near), *min(near)) if near else (0, 0, 0)


def _distance(word: str, part: str) -> tuple[int, int]:
    return 0 if word == part else 1 if word.startswith(part) else 2, len(word)


def _spelled_nearly(typed: Sequence[str], places: Sequence[_Place]) -> list[Result]:
    words = {word for _, words in places for word in words}
    near = [close for part in typed for close in get_close_matches(part, words, cutoff=_LIKENESS)]
    return [result for word in dict.fromkeys(near) for result, words in places if word in words]


@cache
def _places() -> list[_Place]:
    return [(result, [plain(word) for word in words]) for result, words in _named_places()]


def _places_below(root: Path) -> Iterator[_Place]:
    for file, kind, screen_of in ((STUDY, "your study", "/studies/of"), (METRICS, "your run", "/runs/of")):
        for folder in folders_with(file, root):
            yield (
                Result(str(folder), kind, f"{screen_of}/{quote(str(folder))}"),
                [plain(str(folder)), plain(folder.name)],
            )
    for config in own_configs(root):
        yield Result(config, "your config", f"/m/{in_address(config)}"), [plain(config), plain(Path(config).name)]


def _named_places() -> Iterator[_Place]:
    for name, chapter in chapters().items():
        yield Result(chapter.title, "chapter", f"/choice/{quote(name)}"), [name, chapter.title, *chapter.aliases]
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
