"""Which topics explain what an arm of a study changes."""

from collections.abc import Iterator, Mapping
from typing import Any

from archlab.evidence.look_up import Named, by_name, plain
from archlab.evidence.topics import Topic, topics


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
