"""Which topics, or fields of the schema, a person means by a word, and which explain what an arm changes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from archlab.config.core.registry import Registered, kind_of, users_kinds
from archlab.config.problems import nearest
from archlab.config.vocabulary import meant
from archlab.errors import UserError
from archlab.evidence.field_help import FieldHelp, field_help
from archlab.evidence.topics import Chapter, Topic, chapters, topics
from archlab.study.authoring import SCHEMAS

Named = tuple[str, Topic]


class UsersKinds(list[type[Registered]]):
    """Kinds of one name that a user's file brings, one per section."""


_CLOSE = 0.82
"""Words of the field are short and many, so that one that is less alike is another word, as NSA and SWA are."""


def look_up(text: str) -> UsersKinds | Named | Chapter | list[FieldHelp]:
    """Return the user's kinds of that name, the topic, the chapter, or the fields.

    Fields are found by a dotted path or the end of one, by a value that they may have, or by what others call them.
    Raise UserError for a word that is not known, or that means something archlab lacks.
    """
    if own := [kind for kind in users_kinds() if plain(kind_of(kind)) == plain(text)]:
        return UsersKinds(own)
    if found := by_name().get(plain(text)) or _chapters_by_name().get(plain(text)):
        return found
    if "=" in text:
        return _of_setting(text.replace(" ", "")) or _unknown(text)
    if fields := _fields_named(text) or _fields_with(text):
        return fields
    written = meant(text)
    if written.startswith("archlab has"):
        raise UserError(f"{text}: {written}")
    return _of_settings(re.findall(r"(?:model|train|data)\.[\w.]+(?:=[^\s(]+)?", written)) or _unknown(text)


def _every_field() -> dict[str, FieldHelp]:
    """Of a config's file, what a published model's says about it too."""
    return field_help(SCHEMAS["config"])


def plain(text: str) -> str:
    """Letters and digits alone."""
    return "".join(character for character in text.lower() if character.isalnum())


@cache
def by_name() -> dict[str, Named]:
    """Every spelling of every topic, plain -> the topic."""
    return {
        plain(spelling): (name, topic) for name, topic in topics() for spelling in (name, topic.title, *topic.aliases)
    }


@cache
def _chapters_by_name() -> dict[str, Chapter]:
    """Every spelling of every chapter, plain -> the chapter."""
    return {
        plain(spelling): chapter
        for name, chapter in chapters().items()
        for spelling in (name, chapter.title, *chapter.aliases)
    }


def _fields_named(text: str) -> list[FieldHelp]:
    """Those whose path is the text, or ends with it."""
    wanted = [plain(part) for part in text.split(".")]
    paths = {path: [plain(part) for part in path.split(".")] for path in _every_field()}
    exact = [path for path, parts in paths.items() if parts == wanted]
    ending = [path for path, parts in paths.items() if parts[-len(wanted) :] == wanted]
    return [_every_field()[path] for path in exact or ending]


def _fields_with(value: str) -> list[FieldHelp]:
    """Those that may have this value."""
    return [field for field in _every_field().values() if plain(value) in map(plain, field.values)]


def _of_setting(setting: str) -> Named | list[FieldHelp]:
    """The topic that a value is called by, where that sets it, among others; else as of several."""
    named = by_name().get(plain(setting.partition("=")[2]))
    return named if named and setting in named[1].settings else _of_settings([setting])


def _of_settings(settings: Sequence[str]) -> Named | list[FieldHelp]:
    """The topic that most of these `field=value` make, or else the fields that they set."""
    made = [(name, topic) for name, topic in topics() if topic.fields and set(topic.settings) <= set(settings)]
    if made:
        return max(made, key=lambda found: len(found[1].fields))
    paths = dict.fromkeys(setting.partition("=")[0] for setting in settings)
    return [_every_field()[path] for path in paths if path in _every_field()]


def _unknown(text: str) -> list[FieldHelp]:
    spelled = [spelling for name, topic in topics() for spelling in (*topic.aliases, name)]
    hint = nearest(text, [*spelled, *_every_field(), *map(kind_of, users_kinds())], _CLOSE)
    raise UserError(
        f"unknown topic {text!r}{hint or ';'} `archlab explain` lists all, and any field of a config is one"
    )


def explaining(changed: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """What `archlab explain` takes for what was changed in a resolved config; both are by dotted fields.

    First topics that are made by the changes, those with most changed fields first; then fields that topics are made
    by, too, but with other values.
    """
    left = set(changed)
    for name, topic in [*_made(changed, config), *_called(changed, config)]:
        if left & topic.fields.keys():
            left -= topic.fields.keys()
            yield name
    told = {path for _, topic in topics() for path in topic.fields}
    yield from (path for path in changed if path in left & told)


def _made(changed: Mapping[str, Any], config: Mapping[str, Any]) -> list[Named]:
    """Topics that the config has, and of which a field was changed; the plainest first of those with as many."""
    found = [
        (name, topic)
        for name, topic in topics()
        if topic.fields.keys() & changed.keys()
        and all(path in config and config[path] == value for path, value in topic.fields.items())
    ]
    return sorted(found, key=lambda one: (-len(one[1].fields.keys() & changed.keys()), len(one[1].fields)))


def _called(changed: Mapping[str, Any], config: Mapping[str, Any]) -> list[Named]:
    """Topics that go by the name of a value, as `latent`; none whose words are not all in the config: what GELU is to a
    plain MLP is GEGLU to a gated one."""
    named = ((path, by_name().get(plain(value))) for path, value in changed.items() if isinstance(value, str))
    return [found for path, found in named if found and path in found[1].fields and _has_words(found[1], config)]


def _has_words(topic: Topic, config: Mapping[str, Any]) -> bool:
    return all(config.get(path) == value for path, value in topic.fields.items() if isinstance(value, str))
