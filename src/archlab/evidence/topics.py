"""Topics, and the chapters that group them.

A topic explains a choice: its name, its computation, the reasons for it and its costs. The chapters are in the order of
a lecture.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any

from pydantic import Field

from archlab.config.core.base import Base
from archlab.config.core.text import Line
from archlab.config.core.yaml_text import read_yaml, to_yaml_line

_Texts = Annotated[tuple[str, ...], Field(strict=False)]

_OVERRIDE = re.compile(r"\w+\.[\w.]+=")
"""Beginning of an override. The field in it has a dot, unlike that in the option `--filter family=llama`."""


class Demonstrated(Base):
    """A text about models, with a command that demonstrates what it says."""

    try_it: Annotated[Line, Field(alias="try")]
    """Command that the reader can try."""
    shows: dict[Line, Line]
    """Sentences about the output of the command. Each is mapped to a Python expression for the same statement, which a
    test evaluates.

    The expression can use the keys of the command's `--json` output. If this output is a list, its name is `answers`.
    `without` is the output of the command without its `field=value` settings.
    """

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands to print for `try_it`, as in `commands_of`."""
        return commands_of(self.try_it, self.shows)


def commands_of(command: str, shows: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command. If a sentence about its output compares this output with that of the config without the
    overrides, return the command for this config as well."""
    if not any(re.search(r"\bwithout\.", expression) for expression in shows.values()):
        return (command,)
    return command, shlex.join(word for word in shlex.split(command) if not _OVERRIDE.match(word))


class Topic(Demonstrated):
    """An architectural choice, a training choice, or a technical term."""

    title: str
    """Title, spelled as in the literature."""
    aliases: _Texts = ()
    """Other spellings that people type. Case, spaces, periods, dashes and underscores are ignored."""
    fields: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Config values that make this choice, keyed by dotted field. Empty if the topic is not a single choice."""
    against: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Changes to the preset tiny-llama that result in the config without the choice. Empty if that config is tiny-llama
    itself."""
    resized: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """The changes in `against`, plus changes after which the models with and without the choice have the same parameter
    count. Empty if the counts are the same anyway."""
    used: _Texts | None = None
    """Conditions on the fields of a layer. A published model makes the choice if one of its layers meets all
    conditions. null means that the conditions are the values in `fields`."""
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
    shows: dict[Line, Line] = {}  # noqa: RUF012 - pydantic copies it
    """Sentences about the output of the command. Empty if the output contains nothing that can be checked."""
    measured: _Texts = ()
    """Comparisons in archlab's studies that are about the topic but cannot be found through `fields`. Each is written
    as `study/arm`, or as `study/contrast` if the study crosses factors."""
    intensity: bool = False
    """Whether the topic is shown with the arithmetic intensities of MHA, GQA and MQA."""
    pictures: _Texts = ()
    """Names of the pictures that explain the topic."""
    tested_by: _Texts = ()
    """Tests that compare the formula with the code."""

    @property
    def typed(self) -> str:
        """`fields` as arguments for the command line."""
        return shlex.join(self.settings)

    @property
    def settings(self) -> list[str]:
        """`fields` as a list of `field=value` settings."""
        return [f"{path}={to_yaml_line(value)}" for path, value in self.fields.items()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions by which a published model is recognized to make the choice. Empty if published configs do not
        show this."""
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
    """A group of related topics."""

    title: str
    about: str
    """Introduction to the topics of the chapter."""
    aliases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Other names of the chapter."""
    topics: dict[str, Topic]
    """Topics, keyed by the names that `archlab explain` lists."""


@cache
def chapters() -> dict[str, Chapter]:
    """Return all chapters, keyed by name, in the order of a lecture. The numbers in the file names determine the
    order."""
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
