"""Search the atlas for published models with a layer that meets given conditions."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from archlab.atlas.models import PublishedModel, entries
from archlab.atlas.select import COMPARE
from archlab.config.core.base import Base
from archlab.config.core.yaml_text import parse_yaml, to_yaml_line
from archlab.config.layers import LayerConfig, distinct_layers
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.spacing import evenly_spaced

_CONDITION = re.compile(r"([\w.]+)(!=|<=|>=|=|<|>)(.+)")
_FIELD = re.compile(r"(model|train|about)\.[\w.]+")


class LayerCondition(NamedTuple):
    """Condition on one field of a layer."""

    path: str
    sign: str
    wanted: tuple[Any, ...]
    """Values to compare the field with; one match is enough. A dotted field name is replaced by the value of that field
    in the same layer."""


class Usage(Base):
    """Published models that make a certain choice."""

    models: list[str]
    """Preset names of the models that make the choice in at least one layer, ordered by year."""
    partly: list[str]
    """Those of `models` that have also layers without the choice."""
    uncertain: list[str]
    """Preset names of models that make the choice according to an unverified field. They are not in `models`."""
    known: int
    """Number of models for which it is known whether they make the choice."""
    by_year: dict[int, tuple[int, int]]
    """For each year, the number of models that make the choice, and the number of models for which this is known."""


def usage(conditions: Sequence[str]) -> Usage:
    """Return the published models that have a layer for which all conditions hold, such as
    `model.attention.n_kv_heads=1`.

    The right side of a condition may also be another field, or several alternative values as in `gelu|gelu_tanh`. A
    condition with `!=` also holds if the layer does not have the field. Raise UserError if a text is not a condition.
    """
    parsed = [_parse(text) for text in conditions]
    fields = [condition.path.removeprefix("model.") for condition in parsed]
    models, partly, uncertain, years = list[str](), list[str](), list[str](), Counter[int]()
    known = [entry for entry in _entries() if all(_is_known(x.path, entry) for x in parsed)]
    for entry in known:
        made = [_holds(parsed, entry, layer) for layer in _layers()[entry.preset]]
        if not any(made):
            continue
        if entry.about.doubts(*fields):
            uncertain.append(entry.preset)
        else:
            models.append(entry.preset)
            partly += [] if all(made) else [entry.preset]
            years[entry.about.year] += 1
    known_per_year = Counter(entry.about.year for entry in known)
    return Usage(
        models=models,
        partly=partly,
        uncertain=uncertain,
        known=len(known),
        by_year={year: (years[year], n) for year, n in sorted(known_per_year.items())},
    )


class _Model(NamedTuple):
    """Config that is not in the atlas, so nothing else is known about it."""

    config: Config
    about: None = None


def makes_choice(conditions: Sequence[str], config: Config) -> bool:
    """Return whether a layer of the config meets all conditions, which are those of `usage`."""
    parsed = [_parse(text) for text in conditions]
    return any(_holds(parsed, _Model(config), layer) for layer in distinct_layers(config.model))


@cache
def values(path: str) -> dict[str, list[str]]:
    """Map each value of a field to the presets of the published models that use it in at least one layer, without those
    for which the field is unverified, as in `usage`. The most frequent value comes first."""
    found: dict[str, list[str]] = {}
    for entry in _entries():
        if entry.about.doubts(path.removeprefix("model.")):
            continue
        for value in dict.fromkeys(_text(_value(path, entry, layer)) for layer in _layers()[entry.preset]):
            if value is not None:
                found.setdefault(value, []).append(entry.preset)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def users(path: str, text: str) -> list[str]:
    """Return the published models with this value of a field, chosen as in `usage` and ordered by year. The list is
    empty for the pattern of the layers, which is not compared."""
    return [] if path.endswith(".pattern") else values(path).get(text, [])


@cache
def most_common(path: str, kind: str) -> str | None:
    """Return the value of a field that most published models have if its section is of this kind, such as 512 for
    `model.attention.kv_rank` and the kind `latent`. If no model has such a section, the value is that of other kinds.
    Return None if there is none either."""
    section = f"{path.rpartition('.')[0]}.kind"
    found = Counter(
        value
        for entry in _entries()
        for value in {
            _text(_value(path, entry, layer))
            for layer in _layers()[entry.preset]
            if _text(_value(section, entry, layer)) == kind
        }
        if value is not None
    )
    return found.most_common(1)[0][0] if found else next(iter(values(path)), None)


@cache
def _entries() -> list[PublishedModel]:
    return entries()


@cache
def _layers() -> dict[str, list[LayerConfig]]:
    """Map each preset to the distinct layers of its model."""
    return {entry.preset: [*distinct_layers(entry.config.model)] for entry in _entries()}


def _parse(text: str) -> LayerCondition:
    if not (found := _CONDITION.fullmatch(text)):
        raise UserError(
            f"{text!r} is not a condition; write a field, then one of {' '.join(COMPARE)}, then a value or a field"
        )
    return LayerCondition(found[1], found[2], tuple(parse_yaml(value, text) for value in found[3].split("|")))


def _holds(parsed: Sequence[LayerCondition], entry: PublishedModel | _Model, layer: LayerConfig) -> bool:
    return all(
        any(_compares(x.sign, _value(x.path, entry, layer), _wanted(value, entry, layer)) for value in x.wanted)
        for x in parsed
    )


def _wanted(value: Any, entry: PublishedModel | _Model, layer: LayerConfig) -> Any:
    return _value(value, entry, layer) if isinstance(value, str) and _FIELD.fullmatch(value) else value


def _compares(sign: str, found: Any, wanted: Any) -> bool:
    if found is _MISSING or (found is None and sign not in ("=", "!=")):
        return sign == "!="
    return COMPARE[sign](found, wanted)


def _is_known(path: str, entry: PublishedModel) -> bool:
    """Return whether the value of a field is known. A field in the section `about` is unknown if it is null. All other
    fields are known."""
    return not path.startswith("about.") or getattr(entry.about, path.removeprefix("about.")) is not None


_MISSING = object()


def _value(path: str, entry: PublishedModel | _Model, layer: LayerConfig) -> Any:
    root, *names = path.split(".")
    value: Any = entry.about if root == "about" else getattr(entry.config, root)
    if root == "model" and names[0] in LayerConfig.model_fields:
        value = layer
    for name in names:
        value = getattr(value, name, _MISSING)
    return value


def _text(value: Any) -> str | None:
    if value is _MISSING or isinstance(value, Base):
        return None
    return to_yaml_line(list(value) if isinstance(value, tuple) else value)


_MOST_NAMES = 4


def in_words(used: Usage, counted: str = "") -> str:
    """Return text such as `14 of archlab's 107 models, 9 of them only in some layers: mistral-7b-v0.1, ...`.

    The text names up to four models, spread evenly from the first to the last year. `counted` is the setting that they
    have, if it should be shown.
    """
    n, names = len(used.models), list(dict.fromkeys(evenly_spaced(used.models, _MOST_NAMES)))
    named = f": {', '.join(names)}{', ...' if n > len(names) else ''}" if names else ""
    is_complete = used.known == len(_entries())
    of = f"archlab's {used.known} models" if is_complete else f"the {used.known} models for which this is known"
    few = "" if len(used.partly) == n else f"{len(used.partly)} of them "
    partly = f", {few}only in some layers" if used.partly else ""
    return f"{n} of {of}{counted and f' ({counted})'}{partly}{named}"
