"""Topics and their chapters.

A topic says what a choice is called, what it computes, why people make it, and what it costs. Chapters are in the
order of a lecture.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Annotated, Any

from pydantic import Field

from archlab.config.core.base import Base
from archlab.config.core.yaml_text import read_yaml, to_yaml_line

_Texts = Annotated[tuple[str, ...], Field(strict=False)]


class Topic(Base):
    """An architectural or training choice, or a term of the field."""

    title: str
    """Title, in the usual spelling of the field."""
    aliases: _Texts = ()
    """Other spellings that people type. Case, spaces, periods, dashes and underscores are ignored."""
    fields: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Values of dotted fields with which a config makes this choice. Empty if the topic is not a single choice."""
    against: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Changes to tiny-llama that give the config without the choice. Empty if this config is tiny-llama itself."""
    resized: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """`against` with changes that give both configs the same parameter count. Empty if the counts are equal anyway."""
    used: _Texts | None = None
    """Conditions on the layers of a published model. The model makes the choice if one of its layers meets all
    conditions. null means the values in `fields`."""
    formula: str
    """Formula, laid out for the terminal."""
    does: str
    """Description of the choice in words."""
    why: str
    """Reasons that people give for the choice."""
    costs: str
    """Costs and drawbacks of the choice."""
    claims: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Numbers of the claims about the topic."""
    sources: _Texts
    """Keys of the topic's sources in sources.yaml."""
    try_it: Annotated[str, Field(alias="try")]
    """Command for the reader to try."""
    shows: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Sentences about the output of the command. Each is mapped to the same statement as a Python expression, which a
    test evaluates.

    The expression uses the names in the command's `--json` output. If the output is a list, it is called `answers`.
    `without` is the output without the changed fields. Empty if the command prints nothing that can be checked.
    """
    measured: _Texts = ()
    """Comparisons of archlab's studies that are about the topic but cannot be found by `fields`, each as `study/arm`.
    For a contrast of crossed factors, the name of the contrast replaces the arm."""
    pictures: _Texts = ()
    """Names of the drawings of the topic."""
    tested_by: _Texts = ()
    """Tests that compare the formula with the code."""

    @property
    def typed(self) -> str:
        """`fields` as arguments for a shell."""
        return shlex.join(self.settings)

    @property
    def settings(self) -> list[str]:
        """`fields` as a list of `field=value` settings."""
        return [f"{path}={to_yaml_line(value)}" for path, value in self.fields.items()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions under which a published model makes the choice. Empty if published configs do not show whether a
        model makes it."""
        if self.used is not None:
            return self.used
        return tuple(self.settings) if all(path.startswith("model.") for path in self.fields) else ()

    @property
    def counted(self) -> str:
        """Setting by which published models are counted, such as `pairing=interleaved`. Empty if the topic is called by
        the value, if any value counts, or if there are several settings."""
        last = self.conditions[-1] if self.conditions else ""
        path, _, value = re.split("([!<>]?=|[<>])", f"{last}=")[:3]
        names = {re.sub(r"\W|_", "", name.lower()) for name in (self.title, *self.aliases)}
        is_named = re.sub(r"\W|_", "", value) in names or value.lower() in self.title.lower()
        if is_named or value in _ANY or path not in self.fields or len(self.conditions) > _FEW_CONDITIONS:
            return ""
        return re.sub(r"(model|train|about)\.(\w+\.)*", "", last)


_ANY = ("0", "true", "false", "none", "null")
"""Values of conditions that need no mention."""

_FEW_CONDITIONS = 2


class Chapter(Base):
    """Topics that belong together."""

    title: str
    about: str
    """Introduction to the topics of the chapter."""
    aliases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Other names of the chapter."""
    topics: dict[str, Topic]
    """Topics by their names in the list of `archlab explain`."""


@cache
def chapters() -> dict[str, Chapter]:
    """Return all chapters by name, in the order of a lecture. Numbers in the file names give this order."""
    home = resources.files("archlab.evidence") / "topics"
    files = sorted((file for file in home.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {
        file.name.partition("-")[2].removesuffix(".yaml"): Chapter.model_validate(read_yaml(file)) for file in files
    }


def topics() -> Iterator[tuple[str, Topic]]:
    for chapter in chapters().values():
        yield from chapter.topics.items()


def topics_that_set(path: str) -> list[str]:
    """Return the names of the topics whose `fields` contain this dotted field."""
    return [name for name, topic in topics() if path in topic.fields]
