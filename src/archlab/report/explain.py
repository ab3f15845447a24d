"""Explanations of architecture choices, fields and terms. The terminal and Python share this wording."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archlab.config.core import trust
from archlab.config.core.base import kind_of
from archlab.config.core.contract import file_of
from archlab.config.core.plugins import resolve_and_import
from archlab.config.core.registry import Registered
from archlab.displayed import Displayed
from archlab.evidence.claims import cited, mistakes_about, sources
from archlab.evidence.field_help import FieldHelp, fields_of, one_line, place_of
from archlab.evidence.intensity import intensities, intensity_table
from archlab.evidence.look_up import Named, UsersKinds, families_named, listing_models, look_up
from archlab.evidence.prices import BASE, CONTEXT, equal_size, prices
from archlab.evidence.topics import Chapter, Topic, chapters, topics_that_set
from archlab.evidence.usage import Usage, in_words, usage, values
from archlab.pricing.price import Price, price_rows
from archlab.report.text_table import labeled

_INDENT = " " * 9
_MOST_VALUES = 6
"""Maximum number of values that are shown for a field. The values come from published models."""

_KEYS = {"with it": "with", "without": "without", "equal size": "equal_size"}
"""Mapping from headings of the cost table to JSON keys."""

_FEW = 2
"""Maximum number of fields that are explained in full if several fields have the name that the user typed."""


_NARROWEST = 40
"""Smallest number of columns of a line."""


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Explanation of a topic, a chapter, fields, or your own kinds."""

    match: UsersKinds | Named | Chapter | list[FieldHelp] | None
    """Topic with its name, chapter, fields, or kinds of plug-ins that the word names. None means all topics."""
    word: str = ""
    """Word that was looked up."""

    @property
    def data(self) -> Any:
        """The explanation as `archlab explain --json` prints it."""
        match self.match:
            case None:
                return {name: list(chapter.topics) for name, chapter in chapters().items()}
            case Chapter() as chapter:
                return {"title": chapter.title, "about": chapter.about, "topics": list(chapter.topics)}
            case (str() as name, Topic() as topic):
                return _topic_json(name, topic)
            case UsersKinds() as kinds:
                return [_own_kind_json(kind) for kind in kinds]
            case fields:
                return [{**field.model_dump(), "published": _counts(field.path)} for field in fields]

    def lines(self, width: int) -> Iterator[str]:
        """Yield the explanation in lines of at most `width` columns, or 40 if that is more."""
        width = max(width, _NARROWEST)
        explained = self._lines(width)
        if isinstance(self.match, list):
            yield from explained
            yield from self._families()
        else:
            yield next(explained)  # the title
            yield from self._families()
            yield from explained

    def _families(self) -> Iterator[str]:
        if self.word and (families := families_named(self.word)):
            yield f"{self.word} is also a family of models: {listing_models(self.word, families)}"

    def _lines(self, width: int) -> Iterator[str]:
        match self.match:
            case None:
                return _contents(width)
            case Chapter() as chapter:
                return _chapter_lines(chapter, width)
            case (str() as name, Topic() as topic):
                return _topic_lines(name, topic, width)
            case UsersKinds() as kinds:
                return (line for kind in kinds for line in _own_kind_lines(kind, width))
            case fields:
                return _field_lines(fields, width)


def explain(word: str = "", *, plugins: Sequence[str] = ()) -> Explanation:
    """Explain an architecture choice: formula, effect, reasons, models that use it, cost, evidence and settings.

    `word` is a name, as in `swiglu`, `GQA` or `sliding window`; a field, as in `model.attention.n_kv_heads`; or a
    value, as in `gelu_tanh`. Without a word, all topics are listed in the order of a lecture. `plugins` are files or
    modules of your own, whose kinds and fields are explained, too. Raise UserError if the word is unknown.

    >>> archlab.explain("GQA").data["fields"]
    {'model.attention.n_kv_heads': 2}
    """
    trust.accept(*plugins)
    resolve_and_import(tuple(plugins))
    return Explanation(look_up(word) if word else None, word)


def _contents(width: int) -> Iterator[str]:
    for chapter in chapters().values():
        yield chapter.title
        yield from textwrap.wrap(
            "  ".join(chapter.topics), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        yield ""


def _chapter_lines(chapter: Chapter, width: int) -> Iterator[str]:
    yield chapter.title
    yield ""
    yield from textwrap.wrap(chapter.about, width)
    yield ""
    for name, topic in chapter.topics.items():
        yield from textwrap.wrap(f"{name}: {topic.does}", width, subsequent_indent="    ", break_on_hyphens=False)


def _topic_json(name: str, topic: Topic) -> dict[str, Any]:
    from archlab.evidence.ledger import about, measured, measured_over_sizes, published

    by_heading = prices(topic)
    entries = about(topic)
    return {
        "name": name,
        "title": topic.title,
        **topic.model_dump(mode="json", by_alias=True),
        "papers": [effect.model_dump(mode="json") for effect in published(topic, entries)],
        "here": [judged.model_dump(mode="json") for judged in measured(name, entries)],
        "over_sizes": [sized.model_dump(mode="json") for sized in measured_over_sizes(name, entries)],
        "sources": {key: sources()[key].model_dump(mode="json") for key in topic.sources},
        "published": usage(topic.conditions).model_dump() if topic.conditions else None,
        "price": {_KEYS[heading]: price.model_dump() for heading, price in by_heading.items()} or None,
        "flops_per_byte": intensities() if topic.intensity else None,
        "mistakes": [mistake.model_dump(mode="json", by_alias=True) for mistake in mistakes_about(name)],
    }


def _topic_lines(name: str, topic: Topic, width: int) -> Iterator[str]:
    from archlab.evidence.ledger import (  # imports SciPy, which takes half a second
        about,
        measured,
        measured_over_sizes,
        published,
    )
    from archlab.report.ledger import words_over_sizes
    from archlab.report.ledger.words import in_a_line, measured_lines, published_line

    yield topic.title
    yield ""
    yield from textwrap.indent(topic.formula.rstrip(), "    ").splitlines()
    yield ""
    yield from _labeled("does", topic.does, width)
    yield from _labeled("why", topic.why, width)
    yield from _labeled("costs", topic.costs, width)
    if by_heading := prices(topic):
        yield from _price_lines(by_heading)
        if resized := equal_size(topic):
            yield from _labeled("", resized, width)
    if topic.intensity:
        yield from _intensity_lines()
    if topic.conditions:
        yield from _usage_lines(usage(topic.conditions), topic.counted, width)
    entries = about(topic)
    evidence = {
        "papers": map(published_line, published(topic, entries)),
        "here": [
            *measured_lines(measured(name, entries)),
            *map(words_over_sizes.line, measured_over_sizes(name, entries)),
        ],
        "claims": map(in_a_line, entries),
    }
    for label, texts in evidence.items():
        for n, text in enumerate(texts):
            yield from _labeled("" if n else label, text, width)
    yield from _labeled("sources", "; ".join(source.located for source in cited(topic.sources)), width)
    if topic.fields:
        yield from _labeled("type", topic.typed, width)
    for n, command in enumerate(topic.commands):
        yield from _labeled("" if n else "try", command, width)
    for n, sentence in enumerate(topic.shows):
        yield from _labeled("" if n else "shows", sentence, width)
    for n, mistake in enumerate(mistakes_about(name)):
        yield from _labeled("" if n else "errors", f"“{mistake.said}” In fact: {mistake.fact}", width)


def _price_lines(by_heading: Mapping[str, Price]) -> Iterator[str]:
    rows = price_rows(by_heading)
    if not rows:
        yield f"{_INDENT}{BASE}: no difference in 3 digits (FLOPs without norms and sums)"
        return
    for row, *cells in [(f"{BASE} at {CONTEXT} tokens", *by_heading), *rows]:
        yield f"{_INDENT}{row:<26}" + "".join(f"{cell:>12}" for cell in cells)


def _intensity_lines() -> Iterator[str]:
    (corner, *names), *rows = intensity_table()
    for row, *cells in [(f"FLOPs per byte, {corner}", *names), *rows]:
        yield f"{_INDENT}{row:<42}" + "".join(f"{cell:>9}" for cell in cells)


def _usage_lines(used: Usage, counted: str, width: int) -> Iterator[str]:
    yield from _labeled("used by", in_words(used, counted), width)
    if used.uncertain:
        yield from _labeled("", f"unverified: {', '.join(used.uncertain)}", width)
    if used.models:
        years = (f"{year}\N{NO-BREAK SPACE}{n_users}/{n_models}" for year, (n_users, n_models) in used.by_year.items())
        yield from _labeled("", "  ".join(years), width)


def _own_kind_json(kind: type[Registered]) -> dict[str, Any]:
    return {
        "kind": kind_of(kind),
        "section": kind.section,
        "title": kind.display_name,
        "does": one_line(kind.__doc__),
        "file": file_of(kind),
        "fields": [field.model_dump() for field in fields_of(kind)],
    }


def _own_kind_lines(kind: type[Registered], width: int) -> Iterator[str]:
    yield kind.display_name
    yield ""
    yield from _labeled("does", one_line(kind.__doc__), width)
    yield from _labeled("used by", f"yours: {file_of(kind)}", width)
    yield from _labeled("type", f"{place_of(kind)}={kind_of(kind)}", width)
    yield ""
    yield from _field_lines(fields_of(kind), width)


def _field_lines(fields: Sequence[FieldHelp], width: int) -> Iterator[str]:
    for field in fields:
        yield field.path
        for reading in field.readings:
            kinds = f"({', '.join(reading.kinds)}) " if reading.kinds else ""
            yield from _labeled("", f"{kinds}{reading.text}", width)
            yield from _labeled("allowed", reading.allowed, width)
            if reading.default is not None:
                yield from _labeled("default", reading.default, width)
        for value, text in field.values.items() if field.path.endswith(".kind") else ():
            yield from _labeled(value if len(value) < len(_INDENT) else "", _named(value, text), width)
        counts = _counts(field.path)
        if counts and len(fields) <= _FEW:
            yield from _labeled("used", "; ".join(_few(counts)), width)
        if names := topics_that_set(field.path):
            yield from _labeled("topics", ", ".join(names), width)
        value = next(iter(counts), field.readings[0].default)
        if value and not field.is_section:
            yield from _labeled("type", f"{field.path}={value}", width)
        yield ""


def _named(value: str, text: str) -> str:
    return text if len(value) < len(_INDENT) else f"{value}: {text}"


def _counts(path: str) -> dict[str, list[str]]:
    return values(path) if path.startswith("model.") else {}


def _few(counts: dict[str, list[str]]) -> Iterator[str]:
    """Yield `8 in 12 models (phi-4-14b, ...)` for each of the most frequent values."""
    for value, presets in list(counts.items())[:_MOST_VALUES]:
        models = f"{len(presets)} models" if len(presets) > 1 else "1 model"
        yield f"{value} in {models} ({', '.join(presets[:2])}{', ...' if len(presets) > 2 else ''})"
    if (more := len(counts) - _MOST_VALUES) > 0:
        yield f"and {more} other value{'s' if more > 1 else ''}"


def _labeled(label: str, text: str, width: int) -> list[str]:
    return labeled(label, text, len(_INDENT), width)
