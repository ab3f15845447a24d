"""Words under which people look for a topic: informal names, and the terms of the field in Chinese."""

from functools import cache
from importlib import resources

from archlab.config.core.yaml_text import read_yaml


@cache
def words() -> dict[str, str]:
    """Map each word to the name of the topic that explains it."""
    return {word: name for name, terms in spellings().items() for word in terms}


@cache
def spellings() -> dict[str, tuple[str, ...]]:
    """Map the name of a topic to the words under which people look for it."""
    listed = read_yaml(resources.files("archlab.evidence") / "words.yaml")
    return {name: tuple(terms) for name, terms in listed.items()}
