"""Topics: the names of a choice, what it computes, why people make it and what it costs; chapters in lecture order."""

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
    """A choice of architecture or training, or a term of the field."""

    title: str
    """Title, spelled as usual in the field."""
    aliases: _Texts = ()
    """Other spellings that people type. Case, spaces, dots, dashes and underscores are ignored."""
    fields: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Dotted field -> value that makes this choice in a config. Empty: the topic is not a single choice."""
    against: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Values of tiny-llama that the choice is compared with. Empty: tiny-llama unchanged."""
    resized: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """`against` with as many parameters as with the choice. Empty: `against` has as many already."""
    used: _Texts | None = None
    """Conditions that a single layer of a published model must all meet for the model to count as a user of the choice.
    null: the values in `fields`."""
    formula: str
    """Formula, laid out for a terminal."""
    does: str
    """Description in words."""
    why: str
    """Reason why people think it helps."""
    costs: str
    """Costs and drawbacks."""
    claims: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Numbers of the claims about it."""
    sources: _Texts
    """Keys in sources.yaml."""
    try_it: Annotated[str, Field(alias="try")]
    """Command to try."""
    shows: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Sentence about the output of the command -> the same as an expression over the names in its `--json`. A test
    evaluates it. `answers` is the whole list if the output is a list. `without` is the output without changed fields.
    Empty: the command prints no numbers, or nothing that can be checked."""
    measured: _Texts = ()
    """Comparisons of our studies that are about the topic but do not follow from `fields`, each as `study/arm`. A
    contrast of crossed factors is given by its name."""
    pictures: _Texts = ()
    """Names of drawings of it."""
    tested_by: _Texts = ()
    """Tests that compare the formula with the code."""

    @property
    def typed(self) -> str:
        """`fields` as arguments for a shell."""
        return shlex.join(self.settings)

    @property
    def settings(self) -> list[str]:
        """`fields` as a list of `field=value`."""
        return [f"{path}={to_yaml_line(value)}" for path, value in self.fields.items()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions for a published model to count as a user. Empty if they cannot be known of published models."""
        if self.used is not None:
            return self.used
        return tuple(self.settings) if all(path.startswith("model.") for path in self.fields) else ()


class Chapter(Base):
    """Topics that belong together."""

    title: str
    about: str
    """Common ground of the topics."""
    aliases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Other names of the chapter."""
    topics: dict[str, Topic]
    """Name that `archlab explain` lists -> topic."""


@cache
def chapters() -> dict[str, Chapter]:
    """Return all chapters by name, in lecture order: the order of the numbers in the file names."""
    home = resources.files("archlab.evidence") / "topics"
    files = sorted((file for file in home.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {
        file.name.partition("-")[2].removesuffix(".yaml"): Chapter.model_validate(read_yaml(file)) for file in files
    }


def topics() -> Iterator[tuple[str, Topic]]:
    """Yield the name and the topic of each, in lecture order."""
    for chapter in chapters().values():
        yield from chapter.topics.items()


def topics_that_set(path: str) -> list[str]:
    """Return the names of topics whose `fields` have this dotted field."""
    return [name for name, topic in topics() if path in topic.fields]
