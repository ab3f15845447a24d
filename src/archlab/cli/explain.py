"""`archlab explain`."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archlab.cli.arguments import Flag
from archlab.cli.terminal import long_output, print_json
from archlab.config.core import trust
from archlab.config.core.plugins import loaded
from archlab.config.core.registry import Registered, file_of, kind_of
from archlab.console import console
from archlab.evidence.claims import cited, claims, sources
from archlab.evidence.field_help import FieldHelp, fields_of, one_line, place_of
from archlab.evidence.ledger import ledger, measured, published
from archlab.evidence.look_up import UsersKinds, look_up
from archlab.evidence.price import BASE, CONTEXT, Price, equal_size, price_rows, prices
from archlab.evidence.topics import Chapter, Topic, chapters, topics_that_set
from archlab.evidence.usage import Usage, in_words, usage, values
from archlab.report.ledger.words import in_a_line, measured_line, published_line

_INDENT = " " * 9
_MOST_VALUES = 6
"""Of a field in published models."""


_KEYS = {"with it": "with", "without": "without", "equal size": "equal_size"}
"""Of prices, in JSON."""

_FEW = 2
"""Fields of one name of which all is told."""


@long_output
def run(*topic: str, plugins: tuple[str, ...] = (), json: Flag = False) -> None:
    """Explain a choice: its formula, what it does and why, who uses it, what it costs, how to type it.

    Parameters
    ----------
    topic
        What people call it, as in swiglu, GQA or 'sliding window'; a field, as in model.attention.n_kv_heads; or a
        value, as in gelu_tanh. Left out: all topics in the order of a lecture.
    plugins
        Files or modules of yours, whose kinds and their fields are explained too. Repeat the option for several.
    json
        JSON instead.
    """
    trust.accept(*plugins)
    loaded(plugins)
    out = console()
    width = max(out.width, 40)
    if not topic:
        if json:
            print_json({name: list(chapter.topics) for name, chapter in chapters().items()})
            return
        for line in _contents(width):
            out.print(line, soft_wrap=True)
        return
    found = look_up(" ".join(topic))
    if isinstance(found, Chapter):
        if json:
            print_json({"title": found.title, "about": found.about, "topics": list(found.topics)})
            return
        lines = _chapter_lines(found, width)
    elif isinstance(found, tuple):
        name, explained = found
        if json:
            print_json(_topic_json(name, explained))
            return
        lines = _topic_lines(name, explained, width)
    elif isinstance(found, UsersKinds):
        if json:
            print_json([_own_kind_json(kind) for kind in found])
            return
        lines = (line for kind in found for line in _own_kind_lines(kind, width))
    else:
        if json:
            print_json([{**field.model_dump(), "published": _counts(field.path)} for field in found])
            return
        lines = _field_lines(found, width)
    for line in lines:
        out.print(line, soft_wrap=True)


def _contents(width: int) -> Iterator[str]:
    for chapter in chapters().values():
        yield chapter.title
        yield from textwrap.wrap(
            "  ".join(chapter.topics), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        yield ""


def _chapter_lines(chapter: Chapter, width: int) -> Iterator[str]:
    """What its topics have in common, and what each does."""
    yield chapter.title
    yield ""
    yield from textwrap.wrap(chapter.about, width)
    yield ""
    for name, topic in chapter.topics.items():
        yield from textwrap.wrap(f"{name}: {topic.does}", width, subsequent_indent="    ", break_on_hyphens=False)


def _topic_json(name: str, topic: Topic) -> dict[str, Any]:
    found = prices(topic)
    entries = ledger(chosen=map(claims().__getitem__, topic.claims))
    return {
        "name": name,
        **topic.model_dump(mode="json", by_alias=True),
        "papers": [effect.model_dump(mode="json") for effect in published(topic, entries)],
        "here": [judged.model_dump(mode="json") for judged in measured(name, entries)],
        "sources": {key: sources()[key].model_dump(mode="json") for key in topic.sources},
        "published": usage(topic.conditions).model_dump() if topic.conditions else None,
        "price": {_KEYS[name]: price.model_dump() for name, price in found.items()} or None,
    }


def _topic_lines(name: str, topic: Topic, width: int) -> Iterator[str]:
    yield topic.title
    yield ""
    yield from textwrap.indent(topic.formula.rstrip(), "    ").splitlines()
    yield ""
    yield from _labelled("does", topic.does, width)
    yield from _labelled("why", topic.why, width)
    yield from _labelled("costs", topic.costs, width)
    if found := prices(topic):
        yield from _price_lines(found)
        if resized := equal_size(topic):
            yield from _labelled("", resized, width)
    if topic.conditions:
        yield from _usage_lines(usage(topic.conditions), width)
    entries = ledger(chosen=map(claims().__getitem__, topic.claims))
    said = {
        "papers": map(published_line, published(topic, entries)),
        "here": map(measured_line, measured(name, entries)),
        "claims": map(in_a_line, entries),
    }
    for label, texts in said.items():
        for n, text in enumerate(texts):
            yield from _labelled("" if n else label, text, width)
    yield from _labelled("sources", "; ".join(source.located for source in cited(topic.sources)), width)
    if topic.fields:
        yield from _labelled("type", topic.typed, width)
    yield from _labelled("try", topic.try_it, width)
    for n, sentence in enumerate(topic.shows):
        yield from _labelled("" if n else "shows", sentence, width)


def _price_lines(found: Mapping[str, Price]) -> Iterator[str]:
    rows = price_rows(found)
    if not rows:
        yield f"{_INDENT}{BASE}: as without it to three digits, norms and sums aside"
        return
    for row, *cells in [(f"{BASE} at {CONTEXT} tokens", *found), *rows]:
        yield f"{_INDENT}{row:<26}" + "".join(f"{cell:>12}" for cell in cells)


def _usage_lines(found: Usage, width: int) -> Iterator[str]:
    yield from _labelled("used by", in_words(found), width)
    if found.uncertain:
        yield from _labelled("", f"unverified: {', '.join(found.uncertain)}", width)
    if found.models:
        years = (f"{year}\N{NO-BREAK SPACE}{has}/{of}" for year, (has, of) in found.by_year.items())
        yield from _labelled("", "  ".join(years), width)


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
    yield from _labelled("does", one_line(kind.__doc__), width)
    yield from _labelled("used by", f"yours: {file_of(kind)}", width)
    yield from _labelled("type", f"{place_of(kind)}={kind_of(kind)}", width)
    yield ""
    yield from _field_lines(fields_of(kind), width)


def _field_lines(fields: Sequence[FieldHelp], width: int) -> Iterator[str]:
    for field in fields:
        yield field.path
        for reading in field.readings:
            kinds = f"({', '.join(reading.kinds)}) " if len(field.readings) > 1 else ""
            yield from _labelled("", f"{kinds}{reading.text}", width)
            yield from _labelled("allowed", reading.allowed, width)
            if reading.default is not None:
                yield from _labelled("default", reading.default, width)
        for value, text in field.values.items() if field.path.endswith(".kind") else ():
            yield from _labelled(value if len(value) < len(_INDENT) else "", _named(value, text), width)
        published = _counts(field.path)
        if published and len(fields) <= _FEW:
            yield from _labelled("used", "; ".join(_few(published)), width)
        if made := topics_that_set(field.path):
            yield from _labelled("topics", ", ".join(made), width)
        value = next(iter(published), field.readings[0].default)
        if value and not field.is_section:
            yield from _labelled("type", f"{field.path}={value}", width)
        yield ""


def _named(value: str, text: str) -> str:
    return text if len(value) < len(_INDENT) else f"{value}: {text}"


def _counts(path: str) -> dict[str, list[str]]:
    return values(path) if path.startswith("model.") else {}


def _few(published: dict[str, list[str]]) -> Iterator[str]:
    """`8 in 12 models (phi-4-14b, ...)`, the most frequent values."""
    for value, presets in list(published.items())[:_MOST_VALUES]:
        models = f"{len(presets)} models" if len(presets) > 1 else "1 model"
        yield f"{value} in {models} ({', '.join(presets[:2])}{', ...' if len(presets) > 2 else ''})"
    if (more := len(published) - _MOST_VALUES) > 0:
        yield f"and {more} other value{'s' if more > 1 else ''}"


def _labelled(label: str, text: str, width: int) -> Iterator[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=f"{label:<{len(_INDENT)}}",
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return (line.replace("\N{NO-BREAK SPACE}", " ") for line in lines)
