"""Topics: what people call a choice, what it computes, why it is made and what it costs; chapters in lecture order."""

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
    """One choice, or one word of the field."""

    title: str
    """As the field writes it."""
    aliases: _Texts = ()
    """Other spellings that people type; case, spaces, dots, dashes and underscores do not matter."""
    fields: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Dotted field -> value: what makes this choice in a config. Empty: no single choice."""
    against: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """What tiny-llama has instead, where the two are compared. Empty: tiny-llama as it is."""
    resized: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """The same as `against` at as many parameters as with the choice, where that is another size. Empty: it is not."""
    used: _Texts | None = None
    """Conditions of which one layer of a published model must meet all to count. null: those of `fields`."""
    formula: str
    """As a terminal shows it."""
    does: str
    """What it computes, in words."""
    why: str
    """Why people think it helps."""
    costs: str
    """What it takes."""
    claims: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Numbers of those that it is part of."""
    sources: _Texts
    """Keys of who says so, in sources.yaml."""
    try_it: Annotated[str, Field(alias="try")]
    """One command."""
    shows: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Sentence about what the command prints -> the same as an expression over the names in its `--json`, which a test
    evaluates. `answers` is the whole list if there are several; `without` has the command's answer without changed
    fields. Empty: nothing that can be checked, or no numbers."""
    measured: _Texts = ()
    """Comparisons of our studies that are about it and that `fields` do not tell, each as `study/arm`; a contrast of
    crossed factors by its name."""
    pictures: _Texts = ()
    """Names of drawings that show it."""
    tested_by: _Texts = ()
    """Tests that hold the formula against the code."""

    @property
    def typed(self) -> str:
        """`fields` as a shell takes them."""
        return shlex.join(self.settings)

    @property
    def settings(self) -> list[str]:
        """`fields`, each as `field=value`."""
        return [f"{path}={to_yaml_line(value)}" for path, value in self.fields.items()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """What a published model must meet to count as one that has it; none where that is not known of them."""
        if self.used is not None:
            return self.used
        return tuple(self.settings) if all(path.startswith("model.") for path in self.fields) else ()


class Chapter(Base):
    """Topics that belong together."""

    title: str
    about: str
    """What the choices have in common."""
    aliases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What people call all of it, beside its title."""
    topics: dict[str, Topic]
    """By the name that `archlab explain` lists."""


@cache
def chapters() -> dict[str, Chapter]:
    """Name -> chapter, in lecture order: that of the files' numbers."""
    home = resources.files("archlab.evidence") / "topics"
    files = sorted((file for file in home.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {
        file.name.partition("-")[2].removesuffix(".yaml"): Chapter.model_validate(read_yaml(file)) for file in files
    }


def topics() -> Iterator[tuple[str, Topic]]:
    """Name and topic, in lecture order."""
    for chapter in chapters().values():
        yield from chapter.topics.items()


def topics_that_set(path: str) -> list[str]:
    """Names of those that a dotted field makes."""
    return [name for name, topic in topics() if path in topic.fields]
